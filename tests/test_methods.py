"""Every row of docs/methods.md: what it says is what the config holds, and a few batches train what they should."""

import copy
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from jsonargparse import ActionConfigFile, ArgumentParser
from lightning.pytorch import Callback, Trainer
from torch import nn

from routing_lightning.datamodules.base import MultiTaskData, MultiTaskDataModule, MultiTaskDataset
from routing_lightning.modules import MultiTaskClassifier, RoutedClassifier, TaskClassifier
from routing_lightning.networks import TaskSpecific
from routing_lightning.nn.blocks import Blocks
from routing_lightning.report.methods import dataset_name, method_name, paper_values
from routing_lightning.routers import BranchingRouter, FixedRoutes, MLPPolicy, RewardRouter
from tests.test_cli import refused

ROOT = Path(__file__).parents[1]
CONFIGS = ROOT / "configs"
PAGE = (ROOT / "docs" / "methods.md").read_text()


def tables_of(heading: str) -> list[dict[str, str]]:
    """The rows of all tables under a heading of the page."""
    lines = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0].splitlines()
    rows: list[dict[str, str]] = []
    names: list[str] = []
    for line, following in pairwise([*lines, ""]):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if following.startswith("|---"):
            names = cells
        elif line.startswith("|") and not line.startswith("|---"):
            rows.append(dict(zip(names, cells, strict=True)))
    return rows


def rows_of(heading: str) -> list[dict[str, str]]:
    """The rows under a heading that name a config."""
    return [row for row in tables_of(heading) if "config" in row]


ROUTERS = rows_of("Routers")
NETWORKS = rows_of("Baselines and controls")
OTHER_DATA = [row for row in tables_of("Data, and several processes") if "data set" in row]
ROWS = {row["config"].replace("`", ""): row for row in [*ROUTERS, *NETWORKS, *OTHER_DATA]}


def files_of(row: dict[str, str]) -> list[Path]:
    return [CONFIGS / f"{name}.yaml" for name in re.findall(r"`([\w/]+)`", row["config"])]


def merged(row: dict[str, str]) -> dict[str, Any]:
    """What the files of a row hold together."""
    config: dict[str, Any] = {}

    def put(target: dict[str, Any], source: dict[str, Any]) -> None:
        for key, value in source.items():
            if isinstance(value, dict) and isinstance(target.get(key), dict):
                put(target[key], value)
            else:
                target[key] = value

    for path in files_of(row):
        put(config, yaml.safe_load(path.read_text()))
    return config


def init_args(row: dict[str, str]) -> dict[str, Any]:
    """The model's arguments in the files of a row."""
    return merged(row)["model"]["init_args"]


def name_of(part: dict[str, Any] | str) -> str:
    path = part["class_path"] if isinstance(part, dict) else part
    return path.rpartition(".")[2]


def listed(cell: str) -> set[str]:
    return {name.strip() for name in cell.split(";") if name.strip()}


def test_the_page_has_every_config_and_nothing_else():
    others = [*rows_of("Networks"), *rows_of("Data, and several processes")]
    named = {path for row in [*ROWS.values(), *others] for path in files_of(row)}
    assert named == set(CONFIGS.rglob("*.yaml"))


def test_the_page_has_every_row_of_the_papers_results():
    found = set()
    for row in [*ROUTERS, *NETWORKS]:
        config = merged(row)
        dataset = dataset_name(config) if "data" in config else "CIFAR-MTL"
        found |= {(dataset, name) for name in listed(row["row of the results"])}
    found |= {(row["data set"], row["row of the results"]) for row in OTHER_DATA}
    assert found == set(paper_values())


def test_the_page_has_every_row_of_the_papers_implementation_tables():
    found = set().union(*(listed(row["row of the implementation tables"]) for row in [*ROUTERS, *NETWORKS]))
    assert found == {
        "MARL:WPL",
        "REINFORCE",
        "Q-Learning (approx functions)",
        "Q-Learning (tabular)",
        "routing-all-fc",
        "routing-all-fc non-layered",
        "soft-routing-all-fc",
        "dispatched-routing-all-fc",
        "single-agent-routing-all-fc",
    }


@pytest.mark.parametrize("row", ROUTERS, ids=lambda row: row["config"])
def test_what_the_page_says_of_a_router_is_what_its_config_holds(row):
    part = init_args(row)["router"]
    assert row["router"] == name_of(part)
    if row["router"] != "RewardRouter":
        assert [row[name] for name in ("agents", "policy", "learner")] == [""] * 3
        return
    router = part["init_args"]
    agents = {"per_task": "one per task", "dispatched": "one per task + dispatcher", "single": "1"}
    table = name_of(router["policy"]) == "TabularPolicy"
    assert row["agents"] == agents[router.get("agents", "per_task")]
    assert row["policy"] == ("table" if table else "MLP per depth")
    assert row["state used"] == ("t, d" if table else "v, t, d")
    assert row["learner"] == name_of(router["learner"])
    if not table:
        assert router["policy"]["init_args"] == {"hidden": 64}
    assert ("collaboration 0.3" in row["source"]) == (router.get("collaboration", 0) == 0.3)


@pytest.mark.parametrize("row", rows_of("Networks")[1:], ids=lambda row: row["config"])
def test_what_the_page_says_of_a_routed_network_is_what_its_config_holds(row):
    assert row["network"] == name_of(init_args(row)["network"])


@pytest.mark.parametrize("row", NETWORKS, ids=lambda row: row["config"])
def test_what_the_page_says_of_a_network_is_what_its_config_holds(row):
    assert row["network"] == name_of(init_args(row)["network"])


@pytest.mark.parametrize("row", [*ROUTERS, *NETWORKS], ids=lambda row: row["config"])
def test_reports_call_a_run_what_the_paper_calls_it(row):
    if names := listed(row["row of the results"]):
        assert method_name(merged(row)) in names


class HalfOfTheTasks(MultiTaskDataModule):
    """Noise of the right shape; samples of every second task only."""

    mean, std = (0.5,), (0.25,)

    def __init__(self, num_tasks: int, num_classes: int, image_shape: list[int]) -> None:
        super().__init__(batch_size=16)
        self.shape = (num_tasks, num_classes, *image_shape[:2])

    def load_data(self) -> MultiTaskData:
        num_tasks, num_classes, channels, size = self.shape
        generator = torch.Generator().manual_seed(0)
        images = torch.randint(256, (48, size, size, channels), generator=generator, dtype=torch.uint8)
        tasks, labels = 2 * torch.arange(48) % num_tasks, torch.randint(num_classes, (48,), generator=generator)
        dataset = MultiTaskDataset(images.permute(0, 3, 1, 2), torch.arange(48), tasks, labels)
        names = [[str(label) for label in range(num_classes)]] * num_tasks
        return MultiTaskData([str(task) for task in range(num_tasks)], names, dataset, None, dataset)


SIZES = {  # tasks, classes, shape of the images, as the data has them
    "CIFAR-MTL": (20, 5, [3, 32, 32]),
    "MNIST-MTL": (10, 2, [1, 28, 28]),
    "MIN-MTL": (10, 5, [3, 84, 84]),
    "Digits-MTL": (10, 2, [1, 8, 8]),
}


def sizes_of(row: dict[str, str]) -> tuple[int, int, list[int]]:
    config = merged(row)
    return SIZES[dataset_name(config) if "class_path" in config.get("data", {}) else "CIFAR-MTL"]


def built(row: dict[str, str], num_tasks: int | None = None) -> TaskClassifier:
    """The model of a row's config files, made as the command line makes it; for fewer tasks where a number is given."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--config", action=ActionConfigFile)
    parser.add_argument("--seed_everything", type=int)
    for name in ("trainer", "data"):  # read and left alone
        parser.add_argument(f"--{name}", type=dict)
    parser.add_subclass_arguments(TaskClassifier, "model")
    files = [word for path in files_of(row) for word in ("--config", str(path))]
    names = ("num_tasks", "num_classes", "image_shape")
    sizes = sizes_of(row) if num_tasks is None else (num_tasks, *sizes_of(row)[1:])
    options = [f"--model.init_args.{name}={value}" for name, value in zip(names, sizes, strict=True)]
    config = parser.parse_args([*files, *options])
    torch.manual_seed(0)
    return parser.instantiate_classes(config).model


class Routes(Callback):
    """Keeps the actions of all training batches."""

    def __init__(self) -> None:
        self.actions: list[torch.Tensor] = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        if "trace" in outputs:
            self.actions.append(outputs["trace"].actions)


def moved(before: dict[str, torch.Tensor], module: nn.Module) -> set[str]:
    return {name for name, value in module.state_dict().items() if not torch.equal(value, before[name])}


def features_of(model: TaskClassifier) -> nn.Module:
    return model.features if isinstance(model, MultiTaskClassifier) else model.network.body[0]


def used_blocks_alone_moved(before: nn.Module, after: nn.Module, used: set[int]) -> bool:
    assert isinstance(before, Blocks) and isinstance(after, Blocks)
    for block in range(after.num_blocks):
        pairs = zip(before.block_parameters(block), after.block_parameters(block), strict=True)
        if any(not torch.equal(ours, theirs) for ours, theirs in pairs) != (block in used):
            return False
    return True


def check_routed(before: RoutedClassifier, after: RoutedClassifier, actions: torch.Tensor, tasks: set[int]) -> None:
    network, router = after.network, after.router
    for layer, first in zip(network.layers, before.network.layers, strict=True):
        depths = [depth for depth, called in enumerate(network.calls) if called is layer]
        used = set(actions[:, depths].unique().tolist()) - {layer.blocks.num_blocks}  # the last action is PASS
        if isinstance(router, BranchingRouter) and set(depths) & set(router.depths[: int(router.opened)]):
            used = set(range(layer.blocks.num_blocks))  # those without samples are copies of the common one
        assert used and used_blocks_alone_moved(first.blocks, layer.blocks, used)
    changed = moved(before.router.state_dict(), router)
    if not isinstance(router, RewardRouter):
        assert bool(changed) != isinstance(router, FixedRoutes)
        return
    policy, first = router.policy, before.router.policy
    assert changed
    if router.dispatcher is not None:
        assert moved(before.router.dispatcher.policy.state_dict(), router.dispatcher.policy)
    if router.agents != "per_task":
        return
    if isinstance(policy, MLPPolicy):
        for ours, theirs in zip([*policy.first, *policy.second], [*first.first, *first.second], strict=True):
            assert used_blocks_alone_moved(theirs, ours, tasks)
    else:
        rows = (policy.table != first.table).flatten(1).any(1).nonzero().flatten().tolist()
        assert set(rows) == tasks


def check_network(before: MultiTaskClassifier, after: MultiTaskClassifier, tasks: set[int]) -> None:
    for name, part in after.network.named_children():
        assert moved(getattr(before.network, name).state_dict(), part) or not list(part.parameters()), name
    if isinstance(after.network, TaskSpecific):
        for ours, theirs in zip(after.network.own, before.network.own, strict=True):
            assert used_blocks_alone_moved(theirs, ours, tasks)
    if not after.shared_features:
        assert used_blocks_alone_moved(before.features, after.features, tasks)


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_few_batches_train_features_blocks_and_router_and_nothing_else(row):
    if "pcgrad" in row["config"]:
        pytest.importorskip("torchjd", reason="the extra jd is not installed")
    model = built(row)
    data = HalfOfTheTasks(*sizes_of(row))
    before, routes = copy.deepcopy(model), Routes()
    trainer = Trainer(
        accelerator="cpu", max_epochs=1, limit_val_batches=0, callbacks=[routes],
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(model, data)
    assert trainer.global_step == 3
    assert moved(features_of(before).state_dict(), features_of(model))
    tasks = set(data.train_dataset.tasks.tolist())
    assert len(tasks) < model.num_tasks
    if isinstance(model, RoutedClassifier):
        check_routed(before, model, torch.cat(routes.actions), tasks)
    else:
        assert isinstance(model, MultiTaskClassifier)
        check_network(before, model, tasks)


ROUTER = "--model.init_args.router.init_args"
BODY = "--model.init_args.network.init_args"
WPL_TO_MLP = f"{ROUTER}.policy=routing_lightning.routers.MLPPolicy"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([WPL_TO_MLP], "learner WPL got policy MLPPolicy; it trains TabularPolicy only"),
        ([f"{ROUTER}.learner=QLearning", f"{ROUTER}.learner.init_args.scaling=printed"], "'scaling' is not accepted"),
        ([f"{ROUTER}.detach_state=false"], "detach_state is false but policy TabularPolicy .* use MLPPolicy"),
        ([f"{ROUTER}.agents=both"], "per_task"),
        ([f"{ROUTER}.collaboration=2"], r"collaboration is 2.*in \[0, 1\]"),
        ([f"{ROUTER}.collaboration_by=count"], "probability"),
        ([f"{BODY}.allow_pass=true"], "allow_pass is true .* set recurrent_steps to at least 1"),
        ([f"{BODY}.recurrent_steps=2", f"{BODY}.depth=4"], "recurrent_steps is 2 with 4 layers"),
        (
            [f"{WPL_TO_MLP}", f"{ROUTER}.policy.init_args.depth_input=one_hot", f"{ROUTER}.learner=REINFORCE"],
            "use depth_input 'separate'",
        ),
        ([f"{ROUTER}.learner=REINFORCE", f"{ROUTER}.learner.init_args.lr=-1"], "lr of REINFORCE is -1"),
    ],
)
def test_combinations_that_make_no_sense_are_told_in_one_sentence(options, message, tmp_path, capsys):
    # a config without the init_args of WPL, which another learner does not take over
    config = yaml.safe_load((CONFIGS / "digits_mtl.yaml").read_text())
    del config["model"]["init_args"]["router"]["init_args"]["learner"]["init_args"]
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    sentence = refused(capsys, "fit", f"--config={path}", f"--trainer.default_root_dir={tmp_path}", *options)
    assert re.search(message, sentence), sentence
