"""What users of Lightning do with a module works, or is refused in a sentence."""

import pickle
from functools import partial

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    LearningRateFinder,
    ModelSummary,
    StochasticWeightAveraging,
)
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.trainer.connectors.logger_connector import result
from lightning.pytorch.tuner import Tuner
from torch import nn

from routing_lightning.errors import UsageError
from routing_lightning.modules import MultiTaskClassifier
from routing_lightning.networks import TaskSpecific
from routing_lightning.routers import FixedRoutes
from tests.conftest import ToyDataModule, toy_features, toy_model
from tests.modules.test_resume import MODELS, fit

QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
ONE_OPTIMIZER = ["routed", "baseline"]  # of others these callbacks say that they cannot
IMAGES, TASKS = torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 0])


# -- the Tuner and callbacks that touch weights ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ONE_OPTIMIZER)
def test_a_learning_rate_is_found_and_the_state_put_back(name, tmp_path):
    model, data = MODELS[name](), ToyDataModule()
    before = {key: value.clone() for key, value in model.named_parameters()}
    trainer = Trainer(**QUIET, max_epochs=4, default_root_dir=tmp_path)
    finder = Tuner(trainer).lr_find(model, data, num_training=20, update_attr=True)
    tried = torch.tensor(finder.results["lr"])
    assert len(tried) == 20 and (tried.diff() > 0).all() and tried[-1] > 0.1
    assert torch.tensor(finder.results["loss"]).isfinite().all() and model.lr is not None
    for key, value in model.named_parameters():
        assert torch.equal(before[key], value), key
    assert trainer.global_step == 0
    trainer.fit(model, data)
    assert trainer.global_step == 24 and trainer.optimizers[0].param_groups[0]["lr"] == model.lr
    assert list(tmp_path.glob(".lr_find*")) == []


@pytest.mark.parametrize("name", ONE_OPTIMIZER)
def test_finders_of_learning_rate_and_batch_size_as_callbacks(name, tmp_path):
    model, data = MODELS[name](), ToyDataModule(batch_size=4)
    finders = [BatchSizeFinder(max_trials=4, steps_per_trial=1), LearningRateFinder(num_training_steps=20)]
    trainer = Trainer(**QUIET, max_epochs=4, default_root_dir=tmp_path, callbacks=finders)
    trainer.fit(model, data)
    assert data.batch_size == 16 and finders[0].optimal_batch_size == 16
    assert trainer.optimizers[0].param_groups[0]["lr"] == model.lr == finders[1].optimal_lr.suggestion()
    assert trainer.global_step == 24  # 96 samples in batches of the size that was found


@pytest.mark.parametrize("name", ONE_OPTIMIZER)
def test_stochastic_weight_averaging_ends_with_the_mean_of_the_epochs(name):
    class Noting(StochasticWeightAveraging):
        def on_train_epoch_end(self, trainer, pl_module):
            super().on_train_epoch_end(trainer, pl_module)
            ends.append({key: value.detach().clone() for key, value in pl_module.named_parameters()})
            if trainer.current_epoch == 3:
                tables_before.update({key: value.clone() for key, value in pl_module.state_dict().items()})

    tables_before: dict[str, torch.Tensor] = {}
    ends: list[dict[str, torch.Tensor]] = []
    trainer, _ = fit(MODELS[name](), Noting(swa_lrs=0.05, swa_epoch_start=2, annealing_epochs=1), max_epochs=4)
    model = trainer.lightning_module
    assert len(ends) == 5  # the last one is for batch normalisation alone
    for key, value in model.named_parameters():
        mean = torch.stack([end[key] for end in ends[:3]]).mean(0)
        torch.testing.assert_close(value, mean, msg=key)
    tables = {key: value for key, value in model.state_dict().items() if key.endswith("policy.table")}
    assert all(torch.equal(value, tables_before[key]) for key, value in tables.items())


# -- examples, graphs, traces ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_layers_are_measured_with_an_example(name):
    model = MODELS[name]()
    model.example_input_array = (IMAGES, TASKS)
    trainer = Trainer(**QUIET | {"enable_model_summary": True}, callbacks=[ModelSummary(max_depth=2)], max_epochs=0)
    trainer.fit(model, ToyDataModule())
    from lightning.pytorch.utilities.model_summary import summarize

    summary = summarize(model, max_depth=1)
    sizes = dict(zip(summary.layer_names, summary.out_sizes, strict=True))
    assert [4, 2] in (sizes["network"], *(size for size in sizes["network"] if isinstance(size, list)))


def test_an_example_of_something_else_is_refused():
    model = MODELS["routed"]()
    model.example_input_array = IMAGES
    with pytest.raises(UsageError, match=r"example_input_array is a Tensor; give .* \(images, tasks\)"):
        fit(model, enable_model_summary=True)


@pytest.mark.parametrize("name", MODELS)
def test_a_graph_for_tensorboard_is_refused(name, tmp_path):
    model = MODELS[name]()
    model.example_input_array = (IMAGES, TASKS)
    trainer = Trainer(**QUIET | {"logger": TensorBoardLogger(tmp_path, log_graph=True)}, max_epochs=1)
    with pytest.raises(UsageError, match="train.py export"):
        trainer.fit(model, ToyDataModule())


WAYS = {
    "torch.jit.trace": lambda model: torch.jit.trace(model, (IMAGES, TASKS)),
    "torch.jit.trace of the network": lambda model: torch.jit.trace(model.network, (IMAGES, TASKS)),
    "torch.jit.script": torch.jit.script,
    "torch.export": lambda model: torch.export.export(model, (IMAGES, TASKS)),
    "torch.export, strict": lambda model: torch.export.export(model, (IMAGES, TASKS), strict=True),
    "make_fx": lambda model: __import__("torch.fx.experimental.proxy_tensor", fromlist=["make_fx"]).make_fx(model)(
        IMAGES, TASKS
    ),
    "to_torchscript": lambda model: model.to_torchscript(),
    "to_torchscript by trace": lambda model: model.to_torchscript(method="trace", example_inputs=(IMAGES, TASKS)),
    "to_onnx": lambda model: model.to_onnx("never.onnx", (IMAGES, TASKS)),
    "torch.onnx": lambda model: torch.onnx.export(model, (IMAGES, TASKS), "never.onnx", dynamo=True, verbose=False),
    "torch.onnx by trace": lambda model: torch.onnx.export(model, (IMAGES, TASKS), "never.onnx", dynamo=False),
}
PACKED = ["torch.export, strict", "torch.onnx"]
"""Ways of torch that make an error of their own of any error, which holds the sentence."""


@pytest.fixture(scope="module")
def trained() -> dict[str, nn.Module]:
    return {name: fit(MODELS[name](), max_epochs=1)[0].lightning_module.eval() for name in ("routed", "baseline")}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("attached", [False, True], ids=["bare", "trained"])
@pytest.mark.parametrize("name", ["routed", "baseline"])
def test_what_would_fix_the_route_of_the_example_is_refused(name, attached, way, trained):
    """Without a Trainer, too, where looking at each attribute ends in Lightning's own error."""
    if name == "baseline" and way == "torch.jit.trace of the network":
        pytest.skip("its network takes features")
    if way.startswith("torch.onnx"):
        pytest.importorskip("onnxscript", reason="the extra export is not installed")
    model = trained[name] if attached else MODELS[name]().eval()
    with pytest.raises(Exception, match="python train.py export") as error:
        WAYS[way](model)
    assert way in PACKED or isinstance(error.value, UsageError)


def test_what_has_one_way_for_all_can_be_exported():
    network = partial(TaskSpecific, hidden=8, own_layers=0)
    model = MultiTaskClassifier(3, 2, (1, 8, 8), network, toy_features).eval()
    program = torch.export.export(model, (IMAGES, TASKS))
    torch.testing.assert_close(program.module()(2 * IMAGES, TASKS), model(2 * IMAGES, TASKS))


def test_the_network_of_a_task_can_be_traced_and_exported():
    network = MODELS["routed"]().network.specialise(1).eval()
    for made in (torch.jit.trace(network, IMAGES), torch.export.export(network, (IMAGES,)).module()):
        torch.testing.assert_close(made(2 * IMAGES), network(2 * IMAGES))


def test_a_compiled_network_takes_the_route_of_each_batch():
    model = MODELS["routed"]().eval()
    model.router.policy.table.copy_(nn.functional.one_hot(torch.arange(9).view(3, 3) % 4, 4))
    compiled = torch.compile(model, backend="eager")
    for tasks in (TASKS, 2 - TASKS):
        torch.testing.assert_close(compiled(IMAGES, tasks), model(IMAGES, tasks))


@pytest.mark.parametrize(
    "make",
    [partial(toy_model, joint_loss=0.3), lambda: toy_model(router=FixedRoutes("own", stitch=True))],
    ids=["joint loss", "stitched"],
)
def test_a_trainer_runs_a_compiled_model_as_it_runs_the_model(make, capfd):
    """What works on the host is left alone: it would be compiled anew for each route, and fail in inference mode."""

    def figures(compiled):
        model = make()
        trainer = Trainer(**QUIET, enable_checkpointing=False, max_epochs=1, limit_train_batches=3, limit_val_batches=2)
        given, data = torch.compile(model, backend="eager") if compiled else model, ToyDataModule()
        trainer.fit(given, data)
        found = {key: value.item() for key, value in trainer.callback_metrics.items()}
        return found | trainer.validate(given, data, verbose=False)[0]

    assert figures(compiled=True) == pytest.approx(figures(compiled=False))
    assert "recompile" not in capfd.readouterr().err


def test_a_compiled_baseline_trains_and_evaluates():
    model = MODELS["baseline"]()
    compiled = torch.compile(model, backend="eager")
    compiled(IMAGES, TASKS).sum().backward()
    with torch.inference_mode():
        torch.testing.assert_close(compiled(IMAGES, TASKS), model(IMAGES, TASKS))


# -- the rest ----------------------------------------------------------------------------------------------------------


def test_several_processes_make_no_noise_about_metrics(monkeypatch, recwarn):
    monkeypatch.setattr(result, "_distributed_is_initialized", lambda: True)
    result.warning_cache.clear()
    fit(MODELS["routed"]())
    assert not [str(warning.message) for warning in recwarn if "sync_dist" in str(warning.message)]


def test_a_run_from_python_says_nothing_of_how_batches_are_handed_on(recwarn):
    model, data = MODELS["routed"](), ToyDataModule()
    trainer, _ = fit(model)
    trainer.validate(model, data, verbose=False)
    trainer.predict(model, data)
    said = [str(warning.message) for warning in recwarn]
    assert not [text for text in said if "have overridden" in text or "LeafSpec" in text]


@pytest.mark.parametrize("name", ["baseline"])
def test_a_model_of_named_parts_can_be_pickled(name):
    model = MODELS[name]()
    model.make_lr_scheduler = None
    fit(model)
    again = pickle.loads(pickle.dumps(model))
    torch.testing.assert_close(again.eval()(IMAGES, TASKS), model.eval()(IMAGES, TASKS))
