from pathlib import Path

import lightning as L
import yaml
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from routing_lightning.callbacks import RunLogger
from routing_lightning.callbacks.logger import told_values
from routing_lightning.cli import main
from routing_lightning.report import read_run
from tests.callbacks.conftest import all_callbacks, events
from tests.conftest import ToyDataModule, toy_model

DIGITS = Path(__file__).parents[2] / "configs" / "digits_mtl.yaml"


def test_first_charts_are_those_of_the_run(tmp_path):
    logger = RunLogger(tmp_path)
    trainer = L.Trainer(
        max_epochs=2, accelerator="cpu", logger=logger, callbacks=all_callbacks(), enable_progress_bar=False
    )
    trainer.fit(toy_model(), datamodule=ToyDataModule())
    tags = events(trainer.log_dir).Tags()["scalars"]
    assert not {"epoch", "hp_metric"} & set(tags) and "time/epoch" in tags
    assert sorted(read_run(Path(trainer.log_dir)).accuracy) == [1, 2]  # the report knows both names
    values = [value.step for value in events(trainer.log_dir).Scalars("val/acc")]
    assert min(values) > 0  # no point at step 0


def test_hyperparameters_are_those_that_name_the_method(tmp_path):
    quiet = ["--trainer.limit_train_batches=2", "--trainer.limit_val_batches=2", "--trainer.enable_progress_bar=false"]
    logger = [
        "--trainer.logger=routing_lightning.callbacks.RunLogger",
        f"--trainer.logger.init_args.save_dir={tmp_path}",
    ]
    main(["fit", f"--config={DIGITS}", "--trainer.max_epochs=1", "--trainer.accelerator=cpu", *quiet, *logger])
    (folder,) = tmp_path.glob("lightning_logs/*")
    content = events(folder).SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    shown = HParamsPluginData.FromString(content).session_start_info.hparams
    values = {name: value.string_value or value.number_value for name, value in shown.items()}
    expected = {"router": "RewardRouter", "router.learner": "WPL", "router.policy": "TabularPolicy"}
    expected |= {"router.agents": "per_task", "router.policy_lr": 0.1, "network": "RoutingAllFC", "batch_size": 32}
    assert expected.items() <= values.items()
    assert len(values) <= 16 and not [name for name in values if "_instantiator" in name or "class_path" in name]
    content = events(folder).SummaryMetadata("_hparams_/experiment").plugin_data.content
    (metric,) = HParamsPluginData.FromString(content).experiment.metric_infos
    assert metric.name.tag == "val/acc"
    kept = yaml.unsafe_load((folder / "hparams.yaml").read_text())
    assert kept["lr_scheduler"]["init_args"]["step_size"] == 20 and "_instantiator" not in kept


def test_learning_rates_of_router_and_network_are_told_apart():
    part = {"class_path": "a.REINFORCE", "init_args": {"lr": 0.1}}
    params = {
        "router": {"class_path": "a.RewardRouter", "init_args": {"learner": part, "policy": "a.MLPPolicy"}},
        "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.01}},
    }
    assert told_values(params) == {
        "method": "REINFORCE",
        "network": "none",
        "router.agents": "none",
        "router": "RewardRouter",
        "router.learner": "REINFORCE",
        "router.lr": 0.1,
        "router.policy": "MLPPolicy",
        "optimizer": "SGD",
        "optimizer.lr": 0.01,
    }


def test_each_run_states_what_names_its_method():
    fixed = {"router": {"class_path": "a.FixedRoutes"}, "network": "b.RoutingAllFC"}
    branching = {"router": {"class_path": "a.BranchingRouter", "init_args": {"learner": {"class_path": "a.WPL"}}}}
    assert told_values(branching)["method"] == "BranchingRouter" and told_values(branching)["router.learner"] == "WPL"
    own = {"router": {"class_path": "a.FixedRoutes", "init_args": {"routes": "own", "shared_depths": 4}}}
    assert {"router.routes": "own", "router.shared_depths": 4}.items() <= told_values(own).items()
    alone = {"router": None, "network": {"class_path": "b.CrossStitch", "init_args": {"hidden": 4}}}
    assert [told_values(run)["method"] for run in (fixed, alone, {})] == ["FixedRoutes", "CrossStitch", "none"]
    assert set(told_values(fixed)) == set(told_values({})) == set(told_values(alone)) - {"network.hidden"}
