"""Where values come from: configs before and after the command, checkpoints, seeds; and what mistakes are told."""

import copy
import pickle
import re
import sys
from pathlib import Path

import pytest
import yaml

from routing_lightning.cli import main

ROOT = Path(__file__).parents[2]
DIGITS = str(ROOT / "configs" / "digits_mtl.yaml")
SHORT = [
    "--trainer.max_epochs=1",
    "--trainer.limit_train_batches=2",
    "--trainer.limit_val_batches=1",
    "--trainer.limit_test_batches=1",
    "--trainer.limit_predict_batches=1",
    "--trainer.enable_progress_bar=false",
    "--trainer.accelerator=cpu",
    "--record=null",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The CLI of a short run of another batch size."""
    folder = tmp_path_factory.mktemp("run")
    best = "{class_path: ModelCheckpoint, init_args: {monitor: val/acc, mode: max, filename: best, save_last: true}}"
    return main(["fit", f"--config={DIGITS}", *SHORT, "--data.init_args.batch_size=24", "--trainer.max_epochs=2",
                 f"--trainer.default_root_dir={folder}", f"--trainer.callbacks=[{best}]"])  # fmt: skip


def root_of(run) -> Path:
    return Path(run.trainer.log_dir).parents[1]


def refused(capsys, *words: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main(list(words))
    assert stop.value.code in (1, 2)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    return line


@pytest.mark.parametrize("command", ["fit", "validate", "test", "predict"])
def test_the_printed_config_loads_again(command, tmp_path, capsys):
    words = [f"--config={DIGITS}", *SHORT, "--data.init_args.batch_size=12"]
    with pytest.raises(SystemExit) as stop:
        main([command, *words, "--print_config"])
    assert not stop.value.code
    printed = capsys.readouterr().out
    config = tmp_path / "printed.yaml"
    config.write_text(printed)
    cli = main([command, f"--config={config}", f"--trainer.default_root_dir={tmp_path}"])
    assert cli.datamodule.batch_size == 12
    with pytest.raises(SystemExit):
        main([command, f"--config={config}", "--print_config"])
    assert yaml.safe_load(capsys.readouterr().out.split("routing_lightning", 1)[0] or printed)


def test_a_drawn_seed_is_recorded_and_gives_the_same_run(tmp_path):
    words = ["fit", f"--config={DIGITS}", *SHORT, f"--trainer.default_root_dir={tmp_path}"]
    cli = main([*words, "--seed_everything=true"])
    seed = yaml.safe_load((Path(cli.trainer.log_dir) / "config.yaml").read_text())["seed_everything"]
    assert isinstance(seed, int) and not isinstance(seed, bool)
    again = main(["fit", f"--config={Path(cli.trainer.log_dir) / 'config.yaml'}"])
    assert again.trainer.callback_metrics["val/loss"] == cli.trainer.callback_metrics["val/loss"]


def test_a_word_in_place_of_a_function_is_printed_as_it_was_given(capsys, recwarn):
    pruning = ["--trainer.callbacks=ModelPruning", "--trainer.callbacks.pruning_fn=l1_unstructured"]
    with pytest.raises(SystemExit) as stop:
        main(["fit", f"--config={DIGITS}", *pruning, "--print_config"])
    assert not stop.value.code
    (callback,) = yaml.safe_load(capsys.readouterr().out)["trainer"]["callbacks"]
    assert callback["init_args"]["pruning_fn"] == "l1_unstructured"
    assert not [one for one in recwarn if "serialize" in str(one.message)]


@pytest.mark.parametrize(
    "callback", ["{class_path: StochasticWeightAveraging, init_args: {swa_lrs: 0.01}}", "EMAWeightAveraging", "Timer"]
)
def test_the_saved_config_of_a_run_with_callbacks_runs_again(callback, tmp_path, recwarn):
    words = ["fit", f"--config={DIGITS}", *SHORT, f"--trainer.default_root_dir={tmp_path}"]
    cli = main([*words, f"--trainer.callbacks=[{callback}]"])
    again = main(["fit", f"--config={Path(cli.trainer.log_dir) / 'config.yaml'}"])
    assert again.trainer.callback_metrics["val/loss"] == cli.trainer.callback_metrics["val/loss"]
    assert [type(one) for one in again.trainer.callbacks] == [type(one) for one in cli.trainer.callbacks]
    assert not [str(warning.message) for warning in recwarn if "serialize" in str(warning.message)]


TWO = "{class_path: ModelCheckpoint}, {class_path: ModelCheckpoint}"


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        (
            "--trainer.callbacks=[BackboneFinetuning]",
            "BackboneFinetuning freezes the part backbone of the model, which RoutedClassifier does not have",
        ),
        ("--trainer.callbacks=[GradientAccumulationScheduler]", "scheduling"),
        (f"--trainer.callbacks=[{TWO}]", "more than one stateful callback of type `ModelCheckpoint`"),
        ("--trainer.callbacks+=RouteRecorder", "more than one stateful callback of type `RouteRecorder`"),
        ("--trainer.val_check_interval=100", "must be less than or equal to the number of the training batches"),
        (
            "--trainer.callbacks=[{class_path: EarlyStopping, init_args: {monitor: x}}]",
            "monitor of EarlyStopping is 'x', which nobody logs",
        ),
    ],
)
def test_what_lightning_refuses_is_told_in_its_sentence(option, sentence, tmp_path, capsys):
    words = ["fit", f"--config={DIGITS}", *SHORT, f"--trainer.default_root_dir={tmp_path}"]
    if "RouteRecorder" in option:
        words.append("--record=[RouteRecorder]")
    assert re.search(sentence, refused(capsys, *words, option))


MONITORED = "{class_path: %s, init_args: {monitor: val/ac%s}}"


@pytest.mark.parametrize(
    ("option", "nearest"),
    [
        ("--trainer.profiler=simpel", "simpel; did you mean simple?"),
        ("--trainer.gradient_clip_algorithm=nrom", "nrom; did you mean norm?"),
        (f"--trainer.callbacks=[{MONITORED % ('EarlyStopping', ', mode: maxx')}]", "maxx; did you mean max?"),
        (f"--trainer.callbacks=[{MONITORED % ('EarlyStopping', '')}]", "val/ac; did you mean val/acc?"),
        (f"--trainer.callbacks=[{MONITORED % ('ModelCheckpoint', '')}]", "val/ac; did you mean val/acc?"),
    ],
)
def test_what_lightning_lists_is_told_with_the_nearest_in_front(option, nearest, tmp_path, capsys):
    words = ["fit", f"--config={DIGITS}", *SHORT, f"--trainer.default_root_dir={tmp_path}", option]
    assert f"error: there is no {nearest} " in refused(capsys, *words)


@pytest.mark.parametrize("seed", ["-1", str(2**32), "null", "x", "0.5"])
def test_seeds_that_are_none_are_told(seed, tmp_path, capsys):
    words = [f"--config={DIGITS}", *SHORT, f"--trainer.default_root_dir={tmp_path}"]
    assert "seed_everything" in refused(capsys, "fit", *words, f"--seed_everything={seed}")


@pytest.mark.parametrize("text", ["1e-3", "1E-3", "0.001", "1.0e-03"])
def test_numbers_may_be_written_as_people_write_them(text, tmp_path):
    config = tmp_path / "lr.yaml"
    config.write_text(f"model: {{init_args: {{optimizer: {{class_path: SGD, init_args: {{lr: {text}}}}}}}}}\n")
    words = ["fit", f"--config={DIGITS}", *SHORT, f"--trainer.default_root_dir={tmp_path}"]
    for more in (
        [f"--config={config}"],
        [f"--model.init_args.optimizer.init_args.lr={text}"],
    ):
        cli = main([*words, *more])
        assert cli.trainer.optimizers[0].param_groups[0]["lr"] == 0.001


# -- checkpoints -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["option", "words", "yaml", "before", "before with option", "last", "best", "file"])
def test_a_checkpoint_may_be_named_in_every_way(way, run, tmp_path, monkeypatch):
    path = run.trainer.checkpoint_callback.best_model_path
    inner, outer = tmp_path / "inner.yaml", tmp_path / "outer.yaml"
    inner.write_text(yaml.safe_dump({"ckpt_path": path}))
    outer.write_text(yaml.safe_dump({"validate": {"ckpt_path": path}}))
    batch = tmp_path / "batch.yaml"
    batch.write_text("validate: {trainer: {limit_val_batches: 1}}\n")
    monkeypatch.chdir(root_of(run))
    words = {
        "option": ["validate", f"--ckpt_path={path}"],
        "words": ["validate", "--ckpt_path", path],
        "yaml": ["validate", "--config", str(inner)],
        "before": ["--config", str(outer), "validate"],
        "before with option": ["--config", str(batch), "validate", "--ckpt_path", path],
        "last": ["validate", "--ckpt_path", "last"],
        "best": ["validate", "--ckpt_path=best"],
        "file": ["validate", f"--ckpt_path=file://{path}"],
    }[way]
    cli = main([*words, *SHORT, "--trainer.default_root_dir=."])
    assert cli.datamodule.batch_size == 24
    assert Path(cli.trainer.ckpt_path or cli.config["validate"]["ckpt_path"]).is_file()


def test_values_of_a_config_before_the_command_beat_those_of_the_checkpoint(run, tmp_path):
    outer = tmp_path / "outer.yaml"
    outer.write_text("test: {data: {class_path: DigitsMTLDataModule, init_args: {batch_size: 6}}}\n")
    path = run.trainer.checkpoint_callback.best_model_path
    cli = main(
        ["--config", str(outer), "test", f"--ckpt_path={path}", *SHORT, f"--trainer.default_root_dir={tmp_path}"]
    )
    assert cli.datamodule.batch_size == 6


def test_fit_goes_on_from_the_last_checkpoint(run):
    words = ["--trainer.max_epochs=3", f"--trainer.default_root_dir={root_of(run)}"]
    cli = main(["fit", "--ckpt_path=last", *SHORT, *words])
    assert cli.trainer.global_step == 6 and cli.trainer.log_dir != run.trainer.log_dir


@pytest.mark.parametrize("word", ["last", "best"])
def test_without_a_checkpoint_that_is_told(word, tmp_path, capsys):
    sentence = refused(
        capsys, "fit", f"--config={DIGITS}", f"--ckpt_path={word}", f"--trainer.default_root_dir={tmp_path}"
    )
    assert str(tmp_path) in sentence and "leave ckpt_path out" in sentence


def test_a_run_that_compared_nothing_has_no_best(tmp_path, capsys):
    main(["fit", f"--config={DIGITS}", *SHORT, f"--trainer.default_root_dir={tmp_path}"])
    assert "compared no checkpoints" in refused(
        capsys, "test", "--ckpt_path=best", f"--trainer.default_root_dir={tmp_path}"
    )


def test_the_model_does_not_carry_the_command_line(run):
    """Neither pickled nor copied, although its optimizer was made by it."""
    model = run.model
    pickled = pickle.dumps(model)
    weights = sum(value.numel() * value.element_size() for value in model.state_dict().values())
    assert len(pickled) < weights + 100_000
    for name in (b"RoutingCLI", b"Noted", b"SentenceParser", b"lightning.pytorch.trainer.trainer"):
        assert name not in pickled
    for other in (pickle.loads(pickled), copy.deepcopy(model)):
        ours, theirs = (one.configure_optimizers()["optimizer"].param_groups[0] for one in (model, other))
        assert ours["lr"] == theirs["lr"] == 0.02


# -- the nearest -----------------------------------------------------------------------------------------------------

ROUTER = "--model.init_args.router.init_args"


@pytest.mark.parametrize(
    ("option", "nearest"),
    [
        ("--trainer.max_epoch=3", "trainer.max_epochs"),
        ("--modle=1", "model"),
        ("--recrod=null", "record"),
        ("--model=RoutedClasifier", "RoutedClassifier"),
        ("--data=DigitsMTLDatamodule", "DigitsMTLDataModule"),
        (f"{ROUTER}.learner=WPLL", "WPL"),
        (f"{ROUTER}.policy=MLPolicy", "MLPPolicy"),
        (f"{ROUTER}.learner.init_args.scaling=prnted", "printed"),
        (f"{ROUTER}.agents=pertask", "per_task"),
        ("--model.init_args.optimizer=SDG", "SGD"),
        ("--model.init_args.lr_scheduler=StepLr", "StepLR"),
        ("--model.init_args.network=RoutingAlFC", "RoutingAllFC"),
        ("--model.init_args.network.init_args.hiden=3", "hidden"),
        ("--model.init_args.aggregater=3", "aggregator"),
        ("--trainer.precision=bf16-mix", "bf16-mixed"),
        ("--trainer.strategy=dpp", "ddp"),
        ("--trainer.accelerator=cpuu", "cpu"),
        ("--config=modle: 3", "model"),
        ("--config=trainer: {max_epoch: 3}", "trainer.max_epochs"),
        ("--config=model: {init_args: {routr: 3}}", "router"),
    ],
)
def test_misspelt_words_name_the_nearest(option, nearest, capsys):
    assert f"did you mean {nearest}?" in refused(capsys, "fit", f"--config={DIGITS}", option)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("{nonsense: 1}", "Option 'nonsense' is not accepted by DDPStrategy"),
        ("{timeout: soon}", "trainer.strategy.timeout"),
        (
            "{process_group_backend: nccl}",
            "trainer.strategy refuses its values: ProcessGroupNCCL is only",
        ),
    ],
)
def test_a_strategy_that_is_given_as_a_class_tells_which_option_is_wrong(options, said, tmp_path, capsys):
    strategy = f"{{class_path: lightning.pytorch.strategies.DDPStrategy, init_args: {options}}}"
    words = [f"--config={DIGITS}", *SHORT, f"--trainer.default_root_dir={tmp_path}", f"--trainer.strategy={strategy}"]
    assert said in refused(capsys, "fit", *words)
    assert list(tmp_path.iterdir()) == []


def test_a_part_that_is_missing_says_where_it_comes_from(capsys):
    configs = ROOT / "configs"
    assert "configs/data" in refused(capsys, "fit", f"--config={configs / 'methods' / 'wpl.yaml'}")
    assert "configs/methods" in refused(capsys, "fit", f"--config={configs / 'data' / 'digits_mtl.yaml'}")


def test_a_missing_extra_says_what_to_install(monkeypatch, capsys):
    class Absent:
        """Finds no torchjd, as where it is not installed."""

        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] == "torchjd":
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    for name in [name for name in sys.modules if name.partition(".")[0] == "torchjd"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Absent(), *sys.meta_path])
    sentence = refused(capsys, "fit", f"--config={DIGITS}", f"--config={ROOT / 'configs' / 'methods' / 'pcgrad.yaml'}")
    assert 'pip install -e ".[jd]"' in sentence


def test_a_module_that_is_missing_says_where_it_must_lie(capsys):
    assert "PYTHONPATH" in refused(capsys, "fit", f"--config={DIGITS}", "--data=my_missing_parts.Data")


@pytest.mark.parametrize("option", ["--trainer.accelerator=gpuu", "--threads=0", "--threads=x", "--name=a/b"])
def test_impossible_values_are_told(option, tmp_path, capsys):
    name = option.partition("=")[0].rpartition(".")[2].strip("-")
    words = ["fit", f"--config={DIGITS}", *SHORT, f"--trainer.default_root_dir={tmp_path}", option]
    assert name in refused(capsys, *words)


@pytest.mark.parametrize(
    ("option", "name", "value"),
    [
        ("network.init_args.layers={fc: null}", "layers", {"fc": None}),
        ("network.layers={fc: null, layer4: 2}", "layers", {"fc": None, "layer4": 2}),
        ("network.init_args.layers.fc=null", "layers", {"fc": None}),
        ("network.init_args.weights=null", "weights", None),
        ("network.init_args.weights=None", "weights", None),
        ("network.init_args.weights=NONE", "weights", "NONE"),
        ("network.init_args.trainable=0.1", "trainable", 0.1),
    ],
)
def test_null_and_numbers_reach_options_however_deep(option, name, value, capsys):
    configs = [f"--config={ROOT / 'configs' / place}.yaml" for place in ("data/digits_mtl", "methods/wpl")]
    start = "--model.init_args.network={class_path: RoutedBackbone, init_args: {layers: {fc: 3}}}"
    with pytest.raises(SystemExit) as stop:
        main(["fit", *configs, start, f"--model.init_args.{option}", "--print_config"])
    assert not stop.value.code
    config = yaml.safe_load(capsys.readouterr().out.split("fit\n", 1)[-1])
    assert config["model"]["init_args"]["network"]["init_args"][name] == value
