import pytest
import torch
from torch import nn
from torch.nn.functional import linear, relu

from routing_lightning.errors import UsageError
from routing_lightning.networks import RoutingNetwork
from routing_lightning.networks.paper import routed_fc
from routing_lightning.routers import RoutingSpec, Top1Router

F, T, C, H, D, K, N = 7, 4, 3, 5, 3, 6, 12


def batch(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(N, F, generator=generator), torch.randint(T, (N,), generator=generator)


def routed(alpha: float = 0.01, gate: str = "value", **options) -> RoutingNetwork:
    body = nn.Sequential(*routed_fc(F, T, C, **options))
    return RoutingNetwork(body, Top1Router(alpha, gate), T, torch.zeros(1, F))


def run(network: RoutingNetwork, x: torch.Tensor, tasks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and load-balancing loss."""
    logits, trace = network(x, tasks)
    loss = network.router.auxiliary_loss(trace)
    assert loss is not None
    return logits, loss


def reference(network: RoutingNetwork, x: torch.Tensor, tasks: torch.Tensor, gate: str) -> tuple[torch.Tensor, float]:
    """One sample at a time; the shares are counted."""
    counts = [[0] * K for _ in range(D)]
    means = [[0.0] * K for _ in range(D)]
    outputs = []
    for v, task in zip(x, tasks, strict=True):
        for depth in range(D):
            p = network.router.gates[depth](v[None], task[None])[0].softmax(0).detach()
            a = int(p.argmax())
            counts[depth][a] += 1
            for k in range(K):
                means[depth][k] += float(p[k]) / N
            v = linear(v, *network.layers[depth].blocks.linear(a))
            v = relu(v) if depth < D - 1 else v
            v = p[a] * v if gate == "value" else v
        outputs.append(v)
    balance = sum(0.3 * K * sum(counts[d][k] / N * means[d][k] for k in range(K)) for d in range(D))
    return torch.stack(outputs), balance


@pytest.mark.parametrize("gate", ["value", "unit"])
def test_output_and_balance_equal_those_of_one_sample_at_a_time(gate: str) -> None:
    torch.manual_seed(0)
    network = routed(0.3, gate, hidden=H, num_blocks=K)
    x, tasks = batch()
    logits, balance = run(network, x, tasks)
    expected, loss = reference(network, x, tasks, gate)
    torch.testing.assert_close(logits, expected)
    assert float(balance.detach()) == pytest.approx(loss)


def test_the_balance_of_an_even_gate_is_alpha_per_layer() -> None:
    network = routed(alpha=0.01)
    for gate in network.router.gates:
        torch.nn.init.zeros_(gate.out.weight)
        torch.nn.init.zeros_(gate.out.bias)
    assert float(run(network, *batch())[1].detach()) == pytest.approx(0.03)


def test_the_balance_evens_out_a_lopsided_gate() -> None:
    torch.manual_seed(0)
    network = routed(1.0, depth=1)
    with torch.no_grad():
        network.router.gates[0].out.bias[0] += 2.0
    x, tasks = batch()
    run(network, x, tasks)[1].backward()
    gradient = network.router.gates[0].out.bias.grad
    assert gradient[0] > 0 and (gradient[1:] < 0).all()  # a step lowers the crowded block's score
    assert all(block.grad is None for block in network.layers[0].blocks.blocks)


@pytest.mark.parametrize("gate", ["value", "unit"])
def test_the_gate_learns_through_the_output_of_the_chosen_block(gate: str) -> None:
    torch.manual_seed(0)
    network = routed(gate=gate, depth=1)
    x, tasks = batch()
    direction = torch.randn(N, C)
    (network(x, tasks)[0] * direction).sum().backward()
    p = network.router.gates[0](x, tasks).softmax(1)
    expected = torch.zeros(T)
    for n in range(N):
        a = int(p[n].argmax())
        inner = direction[n] @ linear(x[n], *network.layers[0].blocks.linear(a))
        for k in range(T):
            expected[k] += (inner * p[n, a] * (float(a == k) - p[n, k])).detach()
    torch.testing.assert_close(network.router.gates[0].out.bias.grad, expected)


def test_gradient_reaches_gates_and_used_blocks_alone() -> None:
    torch.manual_seed(0)
    network = routed(hidden=H, num_blocks=50)
    logits, balance = run(network, *batch())
    (logits.square().sum() + balance).backward()
    assert all(gate.out.weight.grad.any() and gate.hidden.weight.grad.any() for gate in network.router.gates)
    for layer in (routed_layer.blocks for routed_layer in network.layers):
        moved = {k for k in range(50) if layer.blocks[k].grad is not None}
        assert moved == layer.active
        assert 0 < len(moved) <= N


@pytest.mark.parametrize(("option", "value"), [("alpha", -1.0), ("alpha", float("nan")), ("gate", "none")])
def test_impossible_values_are_refused(option: str, value: object) -> None:
    with pytest.raises(UsageError, match=f"{option} of Top1Router"):
        Top1Router(**{option: value})


def test_in_training_and_evaluation_it_takes_the_same_blocks() -> None:
    network, (x, tasks) = routed(hidden=H), batch()
    assert torch.equal(network.train()(x, tasks)[1].actions, network.eval()(x, tasks)[1].actions)


def test_its_parameters_belong_to_the_networks_optimizer() -> None:
    router = routed(hidden=H).router
    assert list(router.parameters()) and router.own_parameters() == [] and router.configure() == []


def test_states_of_unknown_size_are_refused() -> None:
    with pytest.raises(UsageError, match="Top1Router looks at activations, whose sizes are not known"):
        Top1Router().build(RoutingSpec(2, [3]))
