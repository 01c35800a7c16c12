"""``extend``: new tasks join a checkpoint, and the old ones keep what they had where that is asked for."""

from pathlib import Path

import pytest
import torch
import yaml

from routing_lightning.cli import main
from routing_lightning.export import load, load_trained
from routing_lightning.export.load import has_data
from tests.photos import write_photos
from tests.test_cli import refused
from tests.test_methods import ROOT

OLD = {"place": ["city", "coast", "field"], "season": ["summer", "winter"]}
NEW = {"animal": ["cat", "dog"], "zoo": ["ape", "bear", "owl"]}
NAMES = [*OLD, *NEW]  # an old name stands behind a new one in the alphabet
SHORT = ["--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false", "--record=null"]
BODY = "--model.init_args.network.init_args"


def run(*words: str | Path):
    return main([*map(str, words), *SHORT])


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """Folders old, new and both."""
    root = tmp_path_factory.mktemp("photos")
    write_photos(root / "old", OLD)
    write_photos(root / "new", NEW)
    (root / "both").mkdir()
    for part in ("old", "new"):
        for task in (root / part).iterdir():
            if not task.name.startswith("."):
                (root / "both" / task.name).symlink_to(task)
    return root


@pytest.fixture(scope="module")
def trained(photos, tmp_path_factory):
    """Makes checkpoints of the old tasks, one for each method."""
    made: dict[str, Path] = {}

    def checkpoint(method: str = "wpl") -> Path:
        if method not in made:
            folder = tmp_path_factory.mktemp(method)
            run(
                "fit",
                f"--config={ROOT / 'configs' / 'data' / 'folder.yaml'}",
                f"--config={ROOT / 'configs' / 'methods' / f'{method}.yaml'}",
                f"--data.init_args.root={photos / 'old'}",
                "--data.init_args.image_size=16",
                "--data.init_args.augment=[RandomHorizontalFlip, {class_path: RandomCrop, init_args: {size: 16}}]",
                "--data.init_args.train_per_task=[21, 14]",  # of the old tasks alone
                f"{BODY}.hidden=16",
                f"{BODY}.features.init_args.filters=8",
                "--model.init_args.joint_loss=0.5",  # its layer is of this training alone
                "--trainer.max_epochs=1",
                f"--trainer.default_root_dir={folder}",
            )
            (made[method],) = folder.rglob("*.ckpt")
        return made[method]

    return checkpoint


def fit(checkpoint: Path, folder: Path, *options: str, epochs: int = 2) -> Path:
    cli = run(
        "fit",
        f"--ckpt_path={checkpoint}",
        f"--trainer.max_epochs={epochs}",
        f"--trainer.default_root_dir={folder}",
        *options,
    )
    return Path(cli.trainer.checkpoint_callback.best_model_path)


@torch.no_grad()
def logits_of_old_tasks(checkpoint: Path) -> torch.Tensor:
    images = torch.randint(256, (40, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    model = load_trained(checkpoint).model
    return model(images, torch.arange(40) % len(OLD))


@pytest.mark.parametrize(("method", "data"), [("wpl", "new"), ("reinforce_table", "both"), ("q_table", "both")])
def test_frozen_old_tasks_keep_their_predictions_to_the_bit(method, data, trained, photos, tmp_path):
    before = logits_of_old_tasks(trained(method))
    main(["extend", str(trained(method)), "--data", str(photos / data), "--out", str(tmp_path / "new.ckpt")])
    assert torch.equal(logits_of_old_tasks(tmp_path / "new.ckpt"), before)
    router = "--model.init_args.router.init_args.learner.init_args.policy_lr=0.5"
    options = [router] if method == "wpl" else []
    fitted = fit(tmp_path / "new.ckpt", tmp_path / "a", *options, epochs=1)
    assert torch.equal(logits_of_old_tasks(fitted), before)
    states = [torch.load(path, weights_only=True)["state_dict"] for path in (tmp_path / "new.ckpt", fitted)]
    moved = {name for name, value in states[1].items() if not torch.equal(value, states[0][name])}
    assert any(name.startswith("network.body.") for name in moved)
    table = next(value for name, value in states[1].items() if name.endswith("policy.table"))
    assert torch.equal(table[:2], next(v for n, v in states[0].items() if n.endswith("policy.table"))[:2])
    assert torch.load(fitted, weights_only=True)["task_names"] == NAMES


def test_frozen_old_tasks_keep_their_predictions_on_two_processes(trained, photos, tmp_path):
    main(["extend", str(trained()), "--data", str(photos / "both"), "--out", str(tmp_path / "new.ckpt")])
    fitted = fit(tmp_path / "new.ckpt", tmp_path, "--trainer.devices=2", "--trainer.strategy=ddp_fork", epochs=1)
    assert torch.equal(logits_of_old_tasks(fitted), logits_of_old_tasks(trained()))
    states = [torch.load(path, weights_only=True)["state_dict"] for path in (tmp_path / "new.ckpt", fitted)]
    assert any(not torch.equal(value, states[0][name]) for name, value in states[1].items() if ".body." in name)


def test_a_network_with_a_slowed_group_is_pruned_and_trains_on(trained, photos, tmp_path):
    words = ["--data", str(photos / "both"), "--out", str(tmp_path / "new.ckpt"), "--old", "0.1", "--blocks", "3"]
    main(["extend", str(trained()), *words])
    sgd = [f"--model.init_args.optimizer{word}" for word in ("=SGD", ".init_args.lr=0.01", ".init_args.momentum=0.9")]
    fitted, pruned = fit(tmp_path / "new.ckpt", tmp_path, *sgd, epochs=1), tmp_path / "pruned.ckpt"
    main(["prune", str(fitted), f"--out={pruned}"])
    assert torch.equal(logits_of_old_tasks(pruned), logits_of_old_tasks(fitted))
    before, after = (torch.load(path, weights_only=True)["optimizer_states"][0] for path in (fitted, pruned))
    sizes = [[len(group["params"]) for group in state["param_groups"]] for state in (before, after)]
    assert len(sizes[1]) == 2 and sum(sizes[1]) < sum(sizes[0]) and after["state"]
    assert [group["lr"] for group in before["param_groups"]] == [group["lr"] for group in after["param_groups"]]
    model = load_trained(pruned).model
    ordered = [parameter for group in model.parameter_groups()[0] for parameter in group["params"]]
    for place, state in after["state"].items():
        assert state["momentum_buffer"].shape == ordered[place].shape
    again = torch.load(fit(pruned, tmp_path / "again", epochs=2), weights_only=True)
    assert again["global_step"] == 2 * torch.load(fitted, weights_only=True)["global_step"]
    assert [len(group["params"]) for group in again["optimizer_states"][0]["param_groups"]] == sizes[1]


def test_a_resumed_training_of_new_tasks_equals_the_unbroken_one(trained, photos, tmp_path):
    main(["extend", str(trained()), "--data", str(photos / "both"), "--out", str(tmp_path / "new.ckpt")])
    unbroken = fit(tmp_path / "new.ckpt", tmp_path / "a")
    resumed = fit(fit(tmp_path / "new.ckpt", tmp_path / "b", epochs=1), tmp_path / "b")
    states = [torch.load(path, weights_only=True)["state_dict"] for path in (unbroken, resumed)]
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name]), name
    assert torch.equal(logits_of_old_tasks(resumed), logits_of_old_tasks(trained()))


def test_the_extended_model_is_validated_tested_predicts_exports_and_reports(trained, photos, tmp_path, capsys):
    main(
        [
            "extend",
            str(trained()),
            "--data",
            str(photos / "new"),
            "--out",
            str(tmp_path / "new.ckpt"),
            "--blocks",
            "1",
            "0",
            "2",
        ]
    )
    made = fit(tmp_path / "new.ckpt", tmp_path, "--trainer.log_every_n_steps=1")
    model = load_trained(made).model
    assert [layer.blocks.num_blocks for layer in model.network.layers] == [3, 2, 4]
    where = f"--trainer.default_root_dir={tmp_path}"
    for command, stage in (("validate", "val"), ("test", "test")):
        metrics = run(command, f"--ckpt_path={made}", where).trainer.callback_metrics
        assert {name for name in metrics if "acc_task" in name} == {f"{stage}/acc_task/{name}" for name in NEW}
    run(
        "predict",
        f"--ckpt_path={made}",
        f"--images={photos / 'old'}",
        "--task=season",
        f"--out={tmp_path / 'p.csv'}",
        where,
    )
    lines = (tmp_path / "p.csv").read_text().splitlines()
    assert len(lines) == 51 and all(line.split(",")[2] in OLD["season"] for line in lines[1:])
    main(["export", str(made), f"--out={tmp_path / 'exported'}", "--task=zoo"])
    assert load(tmp_path / "exported" / "zoo.pt2")[1]["classes"] == NEW["zoo"]
    main(["report", str(tmp_path / "lightning_logs"), f"--out={tmp_path / 'report'}"])
    assert "zoo" in (tmp_path / "report" / "report.html").read_text()
    # another time, with other images of the same tasks
    write_photos(tmp_path / "more", {"fruit": ["fig", "kiwi"]})
    main(["extend", str(made), "--data", str(tmp_path / "more"), "--out", str(tmp_path / "more.ckpt"), "--old", "free"])
    assert load_trained(tmp_path / "more.ckpt").model.num_tasks == 5
    main(["prune", str(made), f"--out={tmp_path / 'pruned.ckpt'}"])
    assert torch.equal(logits_of_old_tasks(tmp_path / "pruned.ckpt"), logits_of_old_tasks(trained()))


def test_slowed_old_parts_have_a_rate_of_their_own_and_free_ones_the_same(trained, photos, tmp_path):
    rates = {}
    for how in ("0.1", "free"):
        main(["extend", str(trained()), "--data", str(photos / "both"), "--out", str(tmp_path / how), "--old", how])
        saved = torch.load(fit(tmp_path / how, tmp_path, epochs=1), weights_only=True)
        rates[how] = [(len(group["params"]), group["lr"]) for group in saved["optimizer_states"][0]["param_groups"]]
        before = torch.load(tmp_path / how, weights_only=True)["state_dict"]
        convolution = "network.body.0.layers.0.0.weight"
        name = convolution if convolution in before else next(n for n in before if n.startswith("network.body.0"))
        assert not torch.equal(before[name], saved["state_dict"][name])
    (new, lr), (old, slow) = rates["0.1"]
    assert slow == pytest.approx(0.1 * lr) and rates["free"] == [(new + old, lr)]


def test_mistakes_are_told_in_a_sentence(trained, photos, tmp_path, capsys):
    checkpoint, out = str(trained()), ["--out", str(tmp_path / "new.ckpt")]
    write_photos(tmp_path / "many", {"letter": list("abcd")}, count=2)
    write_photos(tmp_path / "other", {"season": ["summer", "spring"], "animal": ["cat", "dog"]}, count=2)
    for data, options, sentence in (
        (tmp_path / "none", [], "is not there"),
        (photos / "old", [], "has no task but the old ones (place, season)"),
        (tmp_path / "many", [], "has 4 labels but the network tells 3 apart"),
        (tmp_path / "other", [], "has 1 label (season/spring) that the old task did not have"),
        (photos / "new", ["--old", "2"], "old_lr is 2.0; give a factor"),
        (photos / "new", ["--old", "slow"], "old is 'slow'; give frozen, free"),
        (photos / "new", ["--blocks", "0"], "no block is new"),
        (photos / "new", ["--blocks", "1", "2"], "new_blocks [1, 2] for 3 routed layers"),
    ):
        assert sentence in refused(capsys, "extend", checkpoint, "--data", str(data), *out, *options)


@pytest.mark.parametrize(
    ("commands", "option", "sentence"),
    [
        (("fit", "validate"), "depth=2", "network of depth 3, but this one has depth 2"),
        (("test", "predict"), "num_blocks=5", "of [2, 2, 2] blocks at its depths, but this one has [5, 5, 5]"),
    ],
)
def test_a_checkpoint_of_other_depths_or_blocks_is_refused_with_both_numbers(
    commands, option, sentence, trained, tmp_path, capsys
):
    words = [f"--ckpt_path={trained()}", f"--trainer.default_root_dir={tmp_path}", f"{BODY}.{option}", *SHORT]
    for command in commands:
        assert sentence in refused(capsys, command, *words)


def test_a_checkpoint_of_other_tasks_or_classes_is_refused_with_both_numbers(trained, tmp_path, capsys):
    config = tmp_path / "digits.yaml"
    others = {"train_per_task": None, "augment": None}  # what the old data had
    config.write_text(yaml.safe_dump({"data": {"class_path": "DigitsMTLDataModule", "init_args": others}}))
    words = ["--config", str(config), f"--trainer.default_root_dir={tmp_path}", *SHORT]
    for command in ("fit", "test"):
        error = refused(capsys, command, f"--ckpt_path={trained()}", *words)
        assert "for 2 tasks, but this one, made for the data, is for 10 (num_tasks)" in error


def test_the_data_of_a_run_are_normalised_as_they_were_and_measured_no_more(trained, monkeypatch):
    run = load_trained(trained())
    monkeypatch.setattr("routing_lightning.datamodules.folder.measured_moments", None)
    assert has_data(run)
    assert list(run.data.mean) == run.checkpoint["FolderMTLDataModule"]["mean"]
