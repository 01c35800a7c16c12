"""Updates of the Weighted Policy Learner per second, one sample after the other as Algorithm 3 has it."""

import torch

from benchmarks.harness import Options, Table, in_turns, significant
from routing_lightning.routers import wpl_update

DEPTH = 3


def run(options: Options) -> list[Table]:
    """(sample, depth) updates per second, evenly over the agents and all of one agent."""
    table = Table(f"exact WPL updates (one per sample and depth) per second, depth {DEPTH}, float32, on the host")
    cases = ((16, 20, 20), (256, 20, 20), (1024, 20, 20), (256, 100, 100), (256, 1000, 1000))
    for size, num_agents, num_actions in cases:
        ways = {}
        for name in ("all agents", "one agent"):
            policy = torch.full((num_agents, DEPTH, num_actions), 1 / num_actions)
            baseline = torch.zeros(num_agents, DEPTH)
            agents = torch.randint(num_agents, (size,)) if name == "all agents" else torch.zeros(size, dtype=torch.long)
            actions = torch.randint(num_actions, (size, DEPTH))
            returns = torch.randint(2, (size, 1)).float().mul(2).sub(1).repeat(1, DEPTH)

            def way(p=policy, b=baseline, n=agents, a=actions, r=returns) -> None:  # type: ignore[no-untyped-def]
                for _ in range(20):  # an update is shorter than a clock of processor time can tell
                    wpl_update(p, b, n, a, r, policy_lr=0.01)

            ways[name] = way
        times = in_turns(ways, options)
        row = {"batch": size, "agents": num_agents, "actions": num_actions}
        for name, values in times.items():
            rate = 20 * size * DEPTH / sorted(values)[len(values) // 2]
            row[f"{name}, M/s"] = significant(rate / 1e6)
        table.rows.append(row)
    return [table]
