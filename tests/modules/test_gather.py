"""Two processes exchange their traces."""

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from routing_lightning.modules.gather import TraceGatherer
from routing_lightning.networks import RoutedLayer, RoutingNetwork
from routing_lightning.nn import LinearBlocks
from routing_lightning.routers import REINFORCE, WPL, MLPPolicy, RewardRouter, TabularPolicy

SIZES = [(3, 5), (0, 2), (7, 1), (4, 4)]  # samples of each process, batch after batch


def network(mlp: bool) -> RoutingNetwork:
    torch.manual_seed(0)
    router = RewardRouter(MLPPolicy(4), REINFORCE()) if mlp else RewardRouter(TabularPolicy(), WPL())
    body = nn.Sequential(RoutedLayer(LinearBlocks(4, 6, 6)), RoutedLayer(LinearBlocks(3, 6, 2)))
    return RoutingNetwork(body, router, 3, torch.zeros(1, 6))


def traces(mlp: bool, rank: int):
    """The traces of all batches."""
    net, found = network(mlp), []
    for step, sizes in enumerate(SIZES):
        count = sizes[rank]
        generator = torch.Generator().manual_seed(10 * step + rank)
        tasks = torch.randint(3, (count,), generator=generator)
        x = torch.randn(count, 6, generator=generator)
        _, trace = net(x, tasks, explore=True, generator=generator)
        trace.final_reward = torch.randn(count, generator=generator)
        found.append(trace)
    return found


def one_process(rank: int, folder: str, mlp: bool) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    found = traces(mlp, rank)
    gather = TraceGatherer()
    joint = [gather(trace, torch.device("cpu")) for trace in found]
    torch.save([{**vars(trace), "generator": None} for trace in joint], f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def check(tmp_path, mlp: bool) -> None:
    mp.start_processes(one_process, (str(tmp_path), mlp), nprocs=2, start_method="fork")
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    parts = [traces(mlp, rank) for rank in (0, 1)]
    for step in range(len(SIZES)):
        # What a table's actions were drawn from is not sent: the router knows it.
        assert mlp or first[step]["probabilities"] is second[step]["probabilities"] is None
        for name in ("tasks", "agents", "actions", "final_reward", *(["probabilities"] if mlp else [])):
            own = [getattr(part[step], name) for part in parts]
            assert torch.equal(first[step][name], torch.cat(own))
            assert first[step][name].dtype == own[0].dtype
            assert torch.equal(first[step][name], second[step][name])
        assert len(first[step]["states"]) == (2 if mlp else 0)
        for depth, state in enumerate(first[step]["states"]):
            torch.testing.assert_close(state, torch.cat([part[step].states[depth] for part in parts]))


def test_both_get_the_joint_trace_in_rank_order_with_batches_of_any_size(tmp_path):
    check(tmp_path, mlp=False)


def test_the_same_for_policies_that_look_at_activations(tmp_path):
    check(tmp_path, mlp=True)
