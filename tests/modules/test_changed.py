"""Options of a router that differ from those of the checkpoint that a run goes on from."""

import copy
import inspect
import re
from pathlib import Path
from typing import ClassVar

import pytest
import torch

import routing_lightning.routers as routers
from routing_lightning.cli import main
from routing_lightning.errors import UsageError
from routing_lightning.modules.changed import changes, model_changes
from routing_lightning.routers import RoutingSpec
from routing_lightning.routers.rules import OptionRules, Rule
from tests.conftest import toy_model
from tests.modules.test_routed import fit

ROOT = Path(__file__).parents[2]
SHORT = [
    "--trainer.limit_train_batches=4",
    "--trainer.limit_val_batches=1",
    "--trainer.enable_progress_bar=false",
    "--trainer.accelerator=cpu",
    "--record=null",
]
SGD = {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}}
STEP = {"class_path": "torch.optim.lr_scheduler.StepLR", "init_args": {"step_size": 2}}


def part(name: str, **options) -> dict:
    return {"class_path": f"routing_lightning.routers.{name}", "init_args": options}


def parameters_of(name: str) -> list[inspect.Parameter]:
    found = inspect.signature(getattr(routers, name)).parameters.values()
    return [p for p in found if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


GRADIENT = {"lr": 0.5, "optimizer": SGD, "lr_scheduler": STEP}
GREEDY = {"epsilon_start": 0.5, "epsilon_end": 0.5, "epsilon_samples": 9}
OTHERS = {
    "BranchingRouter": {
        "learner": part("WPL"),
        "candidates": 3,
        "order": "first_last",
        "sweeps": 2,
        "begin": 0.2,
        "search": 0.3,
        "stage": 7,
        "pace": 3.0,
        "settle": 0.1,
        "shortest": 0.1,
        "undecided": "common",
        "certainty": 0.9,
        "quorum": 0.5,
        "most": 1.0,
        "stitch": True,
    },
    "RewardRouter": {
        "policy": part("MLPPolicy"),
        "learner": part("REINFORCE"),
        "agents": "single",
        "gamma": 0.5,
        "collaboration": 0.3,
        "collaboration_by": "frequency",
        "detach_state": False,
        "old_tasks": 1,
        "old_blocks": [1, 1],
        "old_lr": 0.1,
    },
    "FixedRoutes": {"routes": "own", "seed": 3, "shared_depths": 1, "stitch": True},
    "GumbelRouter": {"temperature": 2.0, "hidden": 3},
    "Top1Router": {"alpha": 0.1, "gate": "unit", "hidden": 3},
    "TabularPolicy": {},
    "MLPPolicy": {"hidden": 3, "depth_input": "one_hot"},
    "WPL": {
        "policy_lr": 0.5,
        "baseline_lr": 0.5,
        "scaling": "original",
        "floor": 0.1,
        "baseline": "per_action",
        "projection": "euclidean",
    },
    "ApproximateWPL": {**GRADIENT, "baseline_lr": 0.5, "scaling": "printed"},
    "REINFORCE": {**GRADIENT, "baseline": True, "baseline_lr": 0.5},
    "PairedDifference": {"normalised": False, "lr": 0.5},
    "QLearning": {"lr": 0.5, **GREEDY},
    "ApproximateQLearning": {**GRADIENT, **GREEDY},
}
"""Another value than the default for each option."""


def whole(name: str) -> dict:
    """A router with the part in question, all options written out."""
    kind = getattr(routers, name)
    if name == "RewardRouter":
        first = {"policy": part("TabularPolicy"), "learner": whole_part("WPL")}
        return {**part(name), "init_args": {**whole_part(name)["init_args"], **first}}
    if issubclass(kind, routers.Router):
        return whole_part(name)
    if name == "PairedDifference":
        return {**part("BranchingRouter"), "init_args": {"learner": whole_part(name)}}
    policy = name if issubclass(kind, routers.Policy) else "MLPPolicy"
    if name in ("WPL", "QLearning", "TabularPolicy"):
        policy = "TabularPolicy"
    learner = name if issubclass(kind, routers.Learner) else "REINFORCE"
    return part("RewardRouter", policy=whole_part(policy), learner=whole_part(learner))


def whole_part(name: str) -> dict:
    return part(name, **{p.name: None if p.default is p.empty else p.default for p in parameters_of(name)})


def made(config):
    """A router of a config; optimizers, which are made later, are left out."""
    if not isinstance(config, dict) or not config["class_path"].startswith("routing_lightning."):
        return None if isinstance(config, dict) else config
    return getattr(routers, config["class_path"].rpartition(".")[2])(
        **{name: made(value) for name, value in config["init_args"].items()}
    )


def state_of(config) -> dict:
    torch.manual_seed(0)
    router = made(config)
    router.build(RoutingSpec(3, [4, 4], state_sizes=[5, 5]))
    return router.state_dict()


def within(config: dict, name: str) -> dict:
    """The options of a part of a config."""
    if config["class_path"].endswith(f".{name}"):
        return config["init_args"]
    inner = [value for value in config["init_args"].values() if isinstance(value, dict) and holds(value, name)]
    return within(inner[0], name)


def holds(config: dict, name: str) -> bool:
    inner = [value for value in config.get("init_args", {}).values() if isinstance(value, dict)]
    return config["class_path"].endswith(f".{name}") or any(holds(value, name) for value in inner)


def test_every_option_of_every_part_is_tried():
    bases = (routers.Router, routers.Policy, routers.Learner)
    shipped = [getattr(routers, name) for name in routers.__all__]
    for kind in shipped:
        if inspect.isclass(kind) and issubclass(kind, bases) and kind not in (*bases, routers.GradientLearner):
            assert {p.name for p in parameters_of(kind.__name__)} == set(OTHERS[kind.__name__])


@pytest.mark.parametrize(("name", "option"), [(name, option) for name, others in OTHERS.items() for option in others])
def test_what_the_saved_state_depends_on_is_never_said_to_hold_from_here_on(name, option):
    saved = whole(name)
    own = copy.deepcopy(saved)
    within(own, name)[option] = OTHERS[name][option]
    assert changes(saved, saved) == []
    (change,) = changes(saved, own)
    assert change.option == option and change.saved != change.own
    if (name, option) in [("RewardRouter", "policy"), ("RewardRouter", "detach_state")]:
        within(own, name)["learner"] = part("REINFORCE")  # which such a policy needs
        if option == "detach_state":
            within(own, name)["policy"] = within(saved, name)["policy"] = part("MLPPolicy")
            within(saved, name)["learner"] = part("REINFORCE")
    before, after = state_of(saved), state_of(own)
    fits = before.keys() == after.keys() and all(before[key].shape == after[key].shape for key in before)
    if not fits:
        assert change.is_refused and change.is_of_policies
    elif not all(torch.equal(before[key], after[key]) for key in before):
        assert change.rule != Rule.FREE


class OwnPolicy(routers.MLPPolicy):
    """A part of a user's own says what its options have to do with what is saved; those of its base class hold."""

    option_rules: ClassVar[OptionRules] = {"width": Rule.SETTLED}


def test_rules_of_a_part_of_ones_own_and_of_its_base_class_hold():
    def policy(**options):
        own = {"class_path": f"{__name__}.OwnPolicy", "init_args": {"width": 1, "hidden": 1, "other": 1} | options}
        return part("RewardRouter", policy=own)

    for option, rule in {"width": Rule.SETTLED, "hidden": Rule.READS, "other": Rule.FREE}.items():
        (change,) = changes(policy(), policy(**{option: 2}))
        assert (change.option, change.rule) == (option, rule)


def test_null_is_what_it_stands_for_and_modules_have_more_than_one_path():
    learner = {"class_path": "routing_lightning.routers.paired.PairedDifference", "init_args": {}}
    assert changes(part("BranchingRouter", learner=None), part("BranchingRouter", learner=learner)) == []
    assert changes(part("RewardRouter", old_blocks=(1, 2)), part("RewardRouter", old_blocks=[1, 2])) == []
    assert changes(None, part("WPL")) == changes("WPL", None) == []


def test_a_schedule_of_the_router_that_comes_or_goes_is_free_but_not_another_kind():
    learner = part("REINFORCE", lr_scheduler=None), part("REINFORCE", lr_scheduler=STEP)
    other = part("REINFORCE", lr_scheduler={**STEP, "class_path": "torch.optim.lr_scheduler.ExponentialLR"})
    for before, after, rule in [
        (*learner, Rule.FREE),
        (*learner[::-1], Rule.FREE),
        (learner[1], other, Rule.OPTIMIZER),
    ]:
        (change,) = changes(part("RewardRouter", learner=before), part("RewardRouter", learner=after))
        assert change.rule == rule and change.is_refused == (rule == Rule.OPTIMIZER)


def test_what_becomes_of_a_stage_depends_on_where_the_search_stands():
    router = routers.BranchingRouter(stage=5, begin=0.1)
    router.build(RoutingSpec(3, [4, 4]))
    begin, pace = (
        changes(part("BranchingRouter", **{o: 1}), part("BranchingRouter", **{o: 2}))[0] for o in ("begin", "pace")
    )
    assert begin.is_free(router) and pace.is_free(router)
    router.opened.fill_(1)
    assert not begin.is_free(router) and pace.is_free(router)
    assert begin.told(router).startswith("BranchingRouter goes on with begin 1 of the checkpoint, not 2 of the config")
    router.opened.fill_(2), router.closed.fill_(2)
    assert not pace.is_free(router)
    assert pace.told(router).startswith("pace of BranchingRouter is 2, not 1 of the checkpoint, which changes nothing")


def test_a_refusal_names_both_values_and_the_ways_out():
    (change,) = changes(part("RewardRouter", learner=part("WPL")), part("BranchingRouter"))
    assert change.refusal() == (
        "router of the model is BranchingRouter, but the checkpoint's state is that of RewardRouter; give that, or "
        "start a new run from the weights (--weights in place of --ckpt_path)."
    )


MODEL = "--model.init_args."
ROUTER = f"{MODEL}router.init_args."
LEARNER = f"{ROUTER}learner.init_args."
RUNS = {
    "branching": ["branching", f"{ROUTER}learner=PairedDifference", f"{ROUTER}begin=0", f"{ROUTER}stage=3"],
    "by gradient": ["reinforce_table", f"{LEARNER}optimizer=torch.optim.SGD", f"{LEARNER}optimizer.lr=0.05"],
}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Checkpoints of short runs; in that of branching the search is under way."""
    found = {}
    for name, (method, *options) in RUNS.items():
        folder = tmp_path_factory.mktemp("run")
        configs = [f"--config={ROOT / 'configs' / path}.yaml" for path in ("digits_mtl", f"methods/{method}")]
        main(["fit", *configs, *SHORT, *options, "--trainer.max_epochs=1", f"--trainer.default_root_dir={folder}"])
        (found[name],) = folder.rglob("*.ckpt")
    return found


def resume(checkpoint, tmp_path, *options):
    words = [f"--ckpt_path={checkpoint}", f"--trainer.default_root_dir={tmp_path}"]
    return main(["fit", *words, *SHORT, "--trainer.max_epochs=2", *options])


@pytest.mark.parametrize(
    ("run", "options", "warnings", "notes"),
    [
        (
            "branching",
            [f"{ROUTER}stage=9", f"{ROUTER}pace=3", f"{LEARNER}lr=0.5"],
            ["BranchingRouter goes on with stage 3 of the checkpoint, not 9 of the config"],
            [
                "lr of PairedDifference is 0.5 from here on, not 1.0",
                "pace of BranchingRouter is 3.0 from here on, not 2.0",
            ],
        ),
        (
            "by gradient",
            [f"{LEARNER}optimizer.lr=0.5", f"{LEARNER}baseline=true"],
            ["SGD goes on with lr 0.05 of the checkpoint, not 0.5 of the config"],
            ["baseline of REINFORCE is True from here on, not False of the checkpoint"],
        ),
        (
            "by gradient",
            [
                f"{MODEL}final_reward=negative_loss",
                f"{MODEL}label_smoothing=0.1",
                f"{MODEL}optimizer.init_args.nesterov=true",
                f"{MODEL}optimizer.init_args.momentum=0.5",
                f"{MODEL}lr_scheduler.init_args.gamma=0.5",
            ],
            [
                "StepLR goes on with gamma 0.1 of the checkpoint, not 0.5 of the config",
                "SGD goes on with nesterov False of the checkpoint, not True of the config",
                "the optimizer goes on with momentum 0.0 of the checkpoint, not 0.5 of the config",
            ],
            [
                "final_reward of the model is negative_loss from here on, not correct of the checkpoint",
                "label_smoothing of the model is 0.1 from here on, not 0.0 of the checkpoint",
            ],
        ),
        ("by gradient", [f"{MODEL}lr_scheduler=null", f"{MODEL}lr_interval=step"], [], ["lr_scheduler of the model"]),
        ("by gradient", [], [], []),
    ],
)
def test_a_resumed_run_says_what_becomes_of_changed_options(
    run, options, warnings, notes, checkpoints, tmp_path, caplog, recwarn
):
    cli = resume(checkpoints[run], tmp_path, *options)
    warned = [text for text in (str(w.message) for w in recwarn) if "of the checkpoint" in text]
    noted = [record.message for record in caplog.records if "of the checkpoint" in record.message]
    for expected, said in ((warnings, warned), (notes, noted)):
        assert len(said) == len(expected), said
        assert all(line.startswith(begin) for begin, line in zip(sorted(expected), sorted(said), strict=True)), said
    if run == "by gradient":  # as it was said
        assert cli.trainer.optimizers[1].param_groups[0]["lr"] == 0.05


@pytest.mark.parametrize(
    ("run", "option", "sentence"),
    [
        ("branching", f"{ROUTER}order=first_last", "order of BranchingRouter is first_last, but .* last_first; give"),
        ("by gradient", f"{LEARNER}optimizer=torch.optim.Adam", "optimizer of REINFORCE is Adam, but .* SGD; give"),
        ("by gradient", f"{MODEL}lr_interval=step", "lr_interval of the model is step, but .* epoch; give"),
        ("by gradient", "--model.init_args.optimizer=Adam", "optimizer of the model is Adam, but .* SGD; give"),
        (
            "by gradient",
            "--model.init_args.lr_scheduler={class_path: ExponentialLR, init_args: {gamma: 0.5}}",
            "lr_scheduler of the model is ExponentialLR, but .* StepLR; give",
        ),
    ],
)
def test_what_would_give_the_saved_state_another_meaning_is_refused(
    run, option, sentence, checkpoints, tmp_path, capsys
):
    with pytest.raises(SystemExit):
        resume(checkpoints[run], tmp_path, option)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert re.search(sentence, line)


MODEL_OTHERS = {
    "optimizer": [{"class_path": "torch.optim.Adam"}, {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.5}}],
    "lr_scheduler": [None, {**STEP, "init_args": {"step_size": 9}}],
    "lr_interval": ["step"],
    "final_reward": ["negative_loss"],
    "joint_loss": [0.5],
    "network": [part("Other")],
    "one_to_come": [5],
}


@pytest.mark.parametrize("option", MODEL_OTHERS)
def test_every_option_of_a_model_that_differs_is_noticed(option):
    saved = {"optimizer": SGD, "lr_scheduler": STEP, "lr_interval": "epoch", "num_tasks": 3, "network": part("One")}
    saved |= {"final_reward": "correct", "joint_loss": 0.0, "one_to_come": 4, "router": part("WPL"), "_class_path": "a"}
    assert model_changes(saved, saved) == model_changes({}, saved) == model_changes(saved, {}) == []
    assert model_changes(saved, {**saved, "num_tasks": 4, "_class_path": "b"}) == []  # looked at apart
    for other in MODEL_OTHERS[option]:
        (change,) = model_changes(saved, {**saved, option: other})
        assert not change.of_router and option in (change.option, "lr_scheduler", "optimizer")
        kept = change.is_refused or not change.is_free(None)
        assert kept == (option in ("optimizer", "lr_scheduler", "lr_interval") and other is not None)
    assert model_changes({**saved, "lr_scheduler": None}, {**saved, "lr_scheduler": None, "lr_interval": "step"}) == []


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


@pytest.mark.parametrize(
    ("before", "after", "missing"),
    [
        ({}, {"optimizer": adam}, "optimizer is Adam, .* without betas"),
        ({"optimizer": adam}, {}, "optimizer is SGD, .* without dampening"),
        ({"learner": None}, {"learner": adam}, "optimizer is Adam, .* without betas"),
    ],
)
def test_optimizers_of_another_kind_that_python_code_made_are_refused_too(before, after, missing, tmp_path):
    def model(learner=None, **options):
        router = routers.RewardRouter(routers.TabularPolicy(), routers.REINFORCE(optimizer=learner))
        return toy_model(router=router, **options)

    fit(model(**before), default_root_dir=tmp_path, enable_checkpointing=True)
    (checkpoint,) = tmp_path.rglob("*.ckpt")
    with pytest.raises(UsageError, match=missing):
        fit(model(**after), max_epochs=2, ckpt_path=checkpoint)
