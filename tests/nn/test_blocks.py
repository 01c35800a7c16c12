import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from routing_lightning.errors import UsageError
from routing_lightning.nn import LinearBlocks, ModuleBlocks, dispatch


def one_by_one(blocks: LinearBlocks, x: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """Each sample through its block, the obvious way."""
    rows = []
    for row, action in zip(x, actions.tolist(), strict=True):
        if action == blocks.num_blocks:
            rows.append(row)
            continue
        row = nn.functional.linear(row, *blocks.linear(action))
        rows.append(row.relu() if blocks.relu else row)
    return torch.stack(rows)


def gradients(blocks, x, outputs):
    outputs.square().sum().backward()
    found = [x.grad] + [parameter.grad for parameter in blocks.parameters()]
    x.grad = None
    blocks.zero_grad()
    return found


@pytest.mark.parametrize("way", [dispatch._SegmentLinear, dispatch._PaddedLinear])
@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 40),
    num_blocks=st.integers(1, 7),
    relu=st.booleans(),
    skew=st.floats(1, 6),
    may_pass=st.booleans(),
)
def test_dispatch_equals_the_loop_over_samples(way, seed, count, num_blocks, relu, skew, may_pass):
    torch.manual_seed(seed)
    size = 4 if may_pass else 3
    blocks = LinearBlocks(num_blocks, 4, size, relu=relu).double()
    x = torch.randn(count, 4, dtype=torch.float64, requires_grad=True)
    actions = (torch.rand(count) ** skew * (num_blocks + may_pass)).long()
    expected = one_by_one(blocks, x, actions)
    expected_gradients = gradients(blocks, x, expected)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "padding_wins", lambda *_: way is dispatch._PaddedLinear)
        outputs = blocks(x, actions)
        torch.testing.assert_close(outputs, expected)
        for ours, theirs in zip(gradients(blocks, x, outputs), expected_gradients, strict=True):
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("way", [dispatch._SegmentLinear, dispatch._PaddedLinear])
def test_gradients_equal_finite_differences(way, monkeypatch):
    monkeypatch.setattr(dispatch, "padding_wins", lambda *_: way is dispatch._PaddedLinear)
    torch.manual_seed(0)
    blocks = LinearBlocks(3, 4, 2).double()
    actions = torch.tensor([2, 0, 2, 2])
    x = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: blocks(x, actions), (x,))


@pytest.mark.parametrize("kind", ["linear", "module"])
def test_blocks_without_samples_get_no_gradient(kind):
    torch.manual_seed(0)
    blocks = LinearBlocks(5, 4, 4) if kind == "linear" else ModuleBlocks([nn.Linear(4, 4) for _ in range(5)])
    blocks(torch.randn(6, 4), torch.tensor([1, 3, 3, 1, 3, 5])).sum().backward()
    for block in range(5):
        for parameter in blocks.block_parameters(block):
            assert (parameter.grad is not None) == (block in (1, 3))
    active = {id(parameter) for parameter in blocks.active_parameters()}
    assert active == {id(p) for block in (1, 3) for p in blocks.block_parameters(block)}
    blocks.reset_active()
    assert not list(blocks.active_parameters())


@pytest.mark.parametrize("kind", ["linear", "module"])
def test_pass_leaves_the_activation_bit_equal(kind):
    torch.manual_seed(0)
    blocks = LinearBlocks(2, 4, 4) if kind == "linear" else ModuleBlocks([nn.Linear(4, 4), nn.Tanh()])
    x = torch.randn(5, 4)
    outputs = blocks(x, torch.tensor([2, 0, 2, 1, 2]))
    passed = torch.tensor([0, 2, 4])
    assert torch.equal(outputs[passed], x[passed])
    assert not torch.equal(outputs[1], x[1])
    assert torch.equal(blocks(x, torch.full((5,), 2)), x)


def test_module_blocks_send_each_sample_to_its_module():
    class Shift(nn.Module):
        def __init__(self, by: float) -> None:
            super().__init__()
            self.by = by

        def forward(self, x):
            return x + self.by

    blocks = ModuleBlocks([Shift(10.0), nn.Identity(), Shift(30.0)])
    x = torch.arange(8.0).reshape(4, 2)
    outputs = blocks(x, torch.tensor([2, 0, 1, 2]))
    assert torch.equal(outputs, x + torch.tensor([[30.0], [10.0], [0.0], [30.0]]))


def test_a_block_that_normalises_never_sees_an_empty_batch():
    blocks = ModuleBlocks([nn.BatchNorm1d(4) for _ in range(3)])
    assert torch.isfinite(blocks(torch.randn(4, 4), torch.tensor([0, 0, 2, 2]))).all()
    assert blocks.blocks[1].num_batches_tracked == 0


@pytest.mark.parametrize("way", [dispatch._SegmentLinear, dispatch._PaddedLinear])
def test_outputs_follow_the_precision(way, monkeypatch):
    monkeypatch.setattr(dispatch, "padding_wins", lambda *_: way is dispatch._PaddedLinear)
    blocks, actions = LinearBlocks(3, 4, 4), torch.tensor([0, 1, 1])
    with torch.autocast("cpu", torch.bfloat16):
        outputs = blocks(torch.randn(3, 4), actions)
    assert outputs.dtype == torch.bfloat16
    outputs.float().sum().backward()
    assert blocks.blocks[1].grad.dtype == torch.float32
    assert blocks.to(torch.bfloat16)(torch.randn(3, 4).bfloat16(), actions).dtype == torch.bfloat16


@pytest.mark.parametrize(
    "call", [lambda: LinearBlocks(0, 4, 4), lambda: LinearBlocks(2, 0, 4), lambda: ModuleBlocks([])]
)
def test_impossible_sizes_are_refused(call):
    with pytest.raises(UsageError, match="at least 1"):
        call()
