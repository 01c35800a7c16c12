"""Two processes exchange their traces."""

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from routing_lightning.modules.gather import TraceGatherer
from routing_lightning.nn import LinearBlocks
from routing_lightning.nn.routing import RoutingNetwork
from routing_lightning.routers import REINFORCE, WPL, MLPPolicy, Router, TabularPolicy

SIZES = [(3, 5), (0, 2), (7, 1), (4, 4)]  # samples of each process, batch after batch


class Strategy:
    root_device = torch.device("cpu")


def network(mlp: bool) -> RoutingNetwork:
    torch.manual_seed(0)
    router = Router(MLPPolicy(4), REINFORCE()) if mlp else Router(TabularPolicy(), WPL())
    return RoutingNetwork([LinearBlocks(4, 6, 6), LinearBlocks(3, 6, 2)], router, 3)


def traces(mlp: bool, rank: int):
    """The router and its traces of all batches."""
    router, found = network(mlp), []
    for step, sizes in enumerate(SIZES):
        count = sizes[rank]
        generator = torch.Generator().manual_seed(10 * step + rank)
        tasks = torch.randint(3, (count,), generator=generator)
        x = torch.randn(count, 6, generator=generator)
        _, trace = router(x, tasks, explore=True, generator=generator)
        trace.final_reward = torch.randn(count, generator=generator)
        found.append(trace)
    return router.router, found


def one_process(rank: int, folder: str, mlp: bool) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    router, found = traces(mlp, rank)
    gather = TraceGatherer()
    joint = [gather(trace, router, Strategy()) for trace in found]
    torch.save([vars(trace) for trace in joint], f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def check(tmp_path, mlp: bool) -> None:
    mp.spawn(one_process, (str(tmp_path), mlp), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    parts = [traces(mlp, rank)[1] for rank in (0, 1)]
    for step in range(len(SIZES)):
        for name in ("tasks", "agents", "actions", "final_reward", "probabilities"):
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
