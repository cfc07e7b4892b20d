"""Does a wrong configuration say which key, which value and which way out?"""

from __future__ import annotations

from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from fedcore.config import OPERATIONAL, RunConfig
from fedcore.config_text import known_keys, with_overrides
from fedcore.errors import ConfigError, ConfigErrors, FedError
from launcher import build, cli, main
from launcher.build import check_names
from launcher.entry import _same, identity


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("rouds=3", ["rouds", "3", "Try rounds"]),
        ("data.alfa=3", ["data.alfa", "Try data.alpha"]),
        ("alpha=3", ["alpha", "Try data.alpha"]),
        ("tf32=maybe", ["tf32", "'maybe'", "want true or false"]),
        ("evaluate.every=0", ["evaluate.every", "want a whole number ≥ 1. Try 1"]),
        ("algorithm.rule.aneal=linear", ["algorithm.rule.aneal", "Try algorithm.rule.anneal"]),
        ("rounds=many", ["rounds", "'many'", "a whole number ≥ 1. Try 10"]),
        ("algorithm.base=[1]", ["algorithm.base.0", "1", "a text"]),
        ("algorithm.terms={supcon: {temperature: hot}}", ["supcon.temperature", "'hot'"]),
        ("rounds=2.5", ["rounds", "2.5", "a whole number"]),
        ("data.alpha=0", ["data.alpha", "0", "a number > 0"]),
        ("data.alpha=.nan", ["data.alpha", "nan", "a number > 0"]),
        ("clients.momentum=1", ["clients.momentum", "< 1. Try 0.9"]),
        ("data.partition=dirichlt", ["data.partition", "'dirichlt'", "Try dirichlet"]),
        ("data=5", ["data", "5", "a section", "Try fedcore config data"]),
        ("clients.per_round=50", ["clients.per_round", "50", "clients.count=16"]),
        ("clients={batch_size: 1, views: 1}", ["clients.views", "at least two images"]),
        ("rounds=true", ["rounds", "true", "a whole number"]),
        ("data.alpha=1e308", ["data.alpha", "1e308"]),
        ("server.heartbeat=0.5", ["server.heartbeat", "0.5", "3"]),
        (
            "algorithm.rule.start={entropy: {low: 2, high: 1}}",
            ["algorithm.rule.start.entropy", "low <= high"],
        ),
        ("algorithm.rule.start={}", ["algorithm.rule.start", "exactly one"]),
        (
            "algorithm.rule.guard={inverse_variance: 1, hinge: {}}",
            ["algorithm.rule.guard", "at most one"],
        ),
        ("algorithm.server={adam: {lr: hot}}", ["server.adam.lr", "'hot'", "true or false"]),
        ("algorithm.server={adam: {}, yogi: {}}", ["algorithm.server", "one rule: its name"]),
        ("algorithm.server=5", ["algorithm.server", "5", "a mapping or null"]),
        ("metrics.port=70000", ["metrics.port", "70000", "65,535"]),
        ("metrics.key=k.pem", ["metrics.key", "k.pem", "metrics.certificate"]),
    ],
)
def test_a_mistake_names_key_value_and_way_out(override: str, words: list[str]) -> None:
    with pytest.raises(FedError) as caught:
        cli.load_config("default", [override])
    assert caught.value.exit_code == 2
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("algorithm.name=v41", ["algorithm.name", "'v41'", "Try v4"]),
        ("algorithm.anchor=eft", ["algorithm.anchor", "Try etf"]),
        ("algorithm.base=[crossentropy]", ["Try cross_entropy"]),
        ("algorithm.base=[]", ["algorithm.base", "at least one"]),
        ("algorithm.terms={supcom: {temperature: 1}}", ["algorithm.terms", "supcom", "Try supcon"]),
        ("algorithm.terms={supcon: {temp: 1}}", ["algorithm.terms.supcon.temp", "Try temperature"]),
        ("algorithm.rule.anneal=cosinus", ["algorithm.rule.anneal", "Try cosine"]),
        ("algorithm.combine=median", ["algorithm.combine", "'median'"]),
        ("algorithm.readout=ifi", ["algorithm.readout", "Try iffi"]),
        ("model.name=resnet81", ["model.name", "Try resnet18"]),
        ("data.source=mnist5", ["data.source", "Try mnist5k"]),
        ("clients.lr_schedule=cos", ["clients.lr_schedule", "cos"]),
        ("algorithm.align=[proto_anchor]", ["algorithm.align", "proto_anchor"]),
        ("algorithm.base=[supcon, supcon]", ["algorithm.base", "each loss term once"]),
        ("algorithm.terms={supcon: {temperature: 0}}", ["algorithm.terms.supcon.temperature", "0"]),
        ("algorithm.align=[]", ["algorithm.align", "lambda to weigh"]),
        ("algorithm={name: v4, rule: {learned: true}}", ["algorithm.align", "lambda to weigh"]),
        ("algorithm={name: v4, rule: {anneal: linear}}", ["algorithm.align", "no rule can act"]),
        ("algorithm={name: scaffold, fuse: optimal_transport}", ["algorithm.fuse", "mean"]),
        ("algorithm={name: scaffold, mode: one_shot}", ["algorithm.mode", "averaged"]),
        ("algorithm={name: fedproto, combine: mean}", ["algorithm.combine", "by_samples"]),
        ("algorithm={name: fedavg, combine: server_optimised}", ["algorithm.anchor", "etf"]),
        (
            "algorithm={combine: server_optimised, combine_settings: {steps: 0.5}}",
            ["algorithm.combine_settings.steps", "whole"],
        ),
        ("algorithm.combine_settings={steps: 5}", ["algorithm.combine_settings.steps", "none"]),
        ("algorithm={name: fedavg, fuse: ot}", ["algorithm.fuse", "'ot'"]),
        ("algorithm={name: fedavg, server: adm}", ["algorithm.server", "'adm'", "Try adam"]),
        ("algorithm={name: fedadam, server: {adam: {tua: 1}}}", ["server.adam.tua", "Try tau"]),
        ("algorithm={name: fedadam, server: {adam: {beta2: 1}}}", ["adam.beta2", "below 1"]),
        ("algorithm={name: fedadam, server: {adam: {tau: 0}}}", ["server.adam.tau", "1e-09"]),
        (
            "algorithm={name: fedavgm, server: {momentum: {lr: true}}}",
            ["lr", "got true", "Try 1.0"],
        ),
        (
            "algorithm={name: fedavgm, server: {momentum: {nesterov: 1}}}",
            ["algorithm.server.momentum.nesterov", "true or false. Try false"],
        ),
        ("algorithm={name: v14, server: adam}", ["algorithm.mode", "one_shot", "Try averaged"]),
        ("algorithm={name: fedadam, fuse: optimal_transport}", ["algorithm.fuse", "Try mean"]),
        ("algorithm.rule={learned: gradnorm, guard: {}}", ["algorithm.rule.slots", "log"]),
        (
            "algorithm={name: fedetf, align: [proto_to_anchor], "
            "rule: {learned: gradnorm, start: {fixed: 1}}}",
            ["algorithm.classifier", "prototypes"],
        ),
    ],
)
def test_an_unknown_name_is_found_before_anything_runs(override: str, words: list[str]) -> None:
    config = cli.load_config("default", [override])
    with pytest.raises(ConfigError) as caught:
        check_names(config)
    for word in words:
        assert word in str(caught.value)


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(ConfigErrors) as caught:
        RunConfig.of({"rouds": 1, "data": {"alpha": -1}})
    assert "rouds" in str(caught.value)
    assert "data.alpha" in str(caught.value)


def test_a_reference_to_itself_is_no_value(tmp_path: Path) -> None:
    file = tmp_path / "circle.yaml"
    file.write_text("a: &a {b: *a}")
    with pytest.raises(ConfigError, match="holds itself"):
        RunConfig.load(file)


def test_a_file_that_is_something_else_is_not_copied_into_the_error() -> None:
    with pytest.raises(ConfigErrors) as caught:
        RunConfig.of({f"user{i}": "x" * 1000 for i in range(100)})
    assert "and 94 more" in str(caught.value)
    assert len(str(caught.value)) < 4000


def test_override_reaches_a_nested_key_and_leaves_its_input_alone() -> None:
    values = {"data": {"alpha": 1.0}}
    assert with_overrides(values, ["data.seed=3", "rounds=2"]) == {
        "data": {"alpha": 1.0, "seed": 3},
        "rounds": 2,
    }
    assert values == {"data": {"alpha": 1.0}}


@pytest.mark.parametrize("text", ["rounds", "=3", "rounds: [", "a.b={"])
def test_an_override_that_is_none_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError):
        with_overrides({}, [text])


def test_a_key_given_twice_in_yaml_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "twice.yaml"
    file.write_text("rounds: 1\nrounds: 2\n")
    with pytest.raises(ConfigError, match="given twice"):
        RunConfig.load(file)


@pytest.mark.parametrize("text", ["[1, 2]", "a: [", "\x00", "just words", "? [1, 2]\n: 3"])
def test_a_file_that_is_no_configuration(tmp_path: Path, text: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match="--config"):
        RunConfig.load(file)


def test_dump_loads_to_the_same(tmp_path: Path) -> None:
    config = cli.load_config(
        "default", ["algorithm.rule={anneal: linear, guard: {hinge: {gamma: 1e-3}}}"]
    )
    file = tmp_path / "config.yaml"
    file.write_text(config.dump())
    assert RunConfig.load(file) == config


def test_the_digest_moves_with_decisive_keys_only() -> None:
    base = cli.load_config("default")
    assert cli.load_config("default", ["metrics.port=1"]).digest() == base.digest()
    assert cli.load_config("default", ["evaluate.every=5"]).digest() == base.digest()
    assert cli.load_config("default", ["clients.lr=0.1"]).digest() != base.digest()
    assert {key.split(".")[0] for key in OPERATIONAL} <= set(RunConfig.model_fields)


@pytest.mark.parametrize("name", cli.shipped_configs())
def test_every_shipped_configuration_dry_builds(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["--config", name, "--dry-run"]) == 0
    assert "Nothing was run" in capsys.readouterr().out


def test_a_run_directory_carries_the_whole_name_of_its_configuration() -> None:
    request = cli.parse(["--config", "paper/cifar10_a0.05_v14"])
    assert request.run_dir.name.startswith("cifar10_a0.05_v14-v14-s0-")


def test_an_unknown_configuration_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="Try smoke"):
        cli.load_config("smok")


def test_every_key_has_a_description() -> None:
    def check(model: type) -> None:
        for name, field in model.model_fields.items():
            nested = [
                a
                for a in (field.annotation, *getattr(field.annotation, "__args__", ()))
                if hasattr(a, "model_fields")
            ]
            assert field.description or nested, f"{model.__name__}.{name}"
            for part in nested:
                check(part)

    check(RunConfig)
    assert "algorithm.rule.guard.hinge.gamma" in known_keys(RunConfig)


def test_more_classes_than_the_features_can_hold() -> None:
    with pytest.raises(ConfigError, match=r"model\.feature_dim"):
        build.build_objects(cli.load_config("default", ["model.feature_dim=8"]), (1, 28, 28), 10)


def test_a_key_at_its_default_leaves_the_name_of_a_run_as_it_was() -> None:
    """So a key that is new in fedcore, with the default that does what was done before, does."""
    plain, said = RunConfig.of({}), RunConfig.of({"clients": {"momentum": 0.9}, "rounds": 10})
    guarded = {"algorithm": {"rule": {"guard": {"hinge": {"gamma": 1e-5}}}}}
    full = {"algorithm": {"rule": {"guard": {"hinge": {"gamma": 1e-5, "lambda_max": 50.0}}}}}
    assert plain.digest() == said.digest()
    assert RunConfig.of(guarded).digest() == RunConfig.of(full).digest() != plain.digest()
    assert RunConfig.of({"lm": {}}).digest() != plain.digest()
    assert RunConfig.of({"clients": {"momentum": 0.8}}).digest() != plain.digest()


def test_a_schedule_has_settings_where_its_name_stands() -> None:
    said = with_overrides({}, ["clients.lr_schedule.decay.rate=3", "algorithm.rule.anneal=linear"])
    config = RunConfig.of(said)
    assert config.clients.lr_schedule == {"decay": {"rate": 3.0}}
    assert config.algorithm.rule.anneal == "linear"
    assert config.decisive()["clients.lr_schedule.decay.rate"] == 3.0


def test_a_run_of_an_older_fedcore_lacks_a_key_and_is_the_same_run() -> None:
    mine = identity(RunConfig.of({"rounds": 3}), "data")
    older = {key: value for key, value in mine.items() if key != "clients.carry_momentum"}
    _same(older, mine, Path("run"))
    with pytest.raises(ConfigError, match=r"clients\.carry_momentum: False -> True"):
        _same(older, mine | {"clients.carry_momentum": True}, Path("run"))
    with pytest.raises(ConfigError, match=r"gone\.key: 1 -> None"):
        _same(older | {"gone.key": 1}, mine, Path("run"))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["data.root=/tmp"], "data.root: got '/tmp', want nothing: digits comes with a package"),
        (["data.size=16"], "data.size: got 16, want nothing: images of digits have their own size"),
    ],
)
def test_a_key_that_the_dataset_would_pass_over_is_told(words: list[str], told: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_names(cli.load_config("smoke", words))
    assert told in str(error.value)


def test_a_second_configuration_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.parser().parse_args(["--config", "smoke", "--config", "default"])
    assert "--config is given twice" in capsys.readouterr().err


def test_torchrun_is_given_the_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its own report then ends with them, and not with advice on tracebacks."""
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    monkeypatch.setenv("RANK", "1")
    assert main.main(["--config", "smoek"]) == 2
    assert capsys.readouterr().err == ""
    failure = ProcessFailure(0, 1, 2, str(tmp_path / "error.json"))
    assert "Try smoke" in ChildFailedError("run", {1: failure}).format_msg().splitlines()[-2]
