"""
Settings: one precedence, what hides what, the names in errors, and the command that shows them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import orjson
import pytest

from stepspec import Endpoint, Solver, settings
from stepspec.orchestrator.endpoints import CriticEndpoint
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.run_options import Place
from stepspec.setting_sources import CommandLine, with_command_line

from .test_cli import call

pytestmark = pytest.mark.usefixtures("nowhere")

FILE = """\
policy = "bild"
[options]
scale = "step"
[large]
url = "http://host:1/v1"
api_key = "SECRET-OF-THE-FILE"
[service]
keys = ["SECRET-OF-CLIENTS"]
"""


def key_of(endpoint: object) -> str | None:
    assert isinstance(endpoint, Endpoint)
    return endpoint.api_key.get_secret_value() if endpoint.api_key else None


def flags(**values: Any) -> CommandLine:
    """Flags called as the keys of their settings."""
    names: dict[Place, str] = {
        (table, key): f"--{table}-{key}" for table, keys in values.items() for key in keys
    }
    return CommandLine(values, names)


def test_flags_go_before_arguments_before_variables_before_the_file_before_defaults(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (nowhere / "stepspec.toml").write_text('policy = "large"\nahead = 5\n[budget]\nsteps = 7\n')
    assert settings.load().policy == "large"
    monkeypatch.setenv("STEPSPEC_POLICY", "small")
    monkeypatch.setenv("STEPSPEC_SAMPLING__TOP_P", "0.5")
    loaded = settings.load(ahead=0)
    assert (loaded.policy, loaded.ahead, loaded.budget.steps, loaded.budget.tokens) == (
        "small",
        0,
        7,
        32_768,
    )
    assert settings.load(policy="specreason").policy == "specreason"
    with with_command_line(flags(sampling={"temperature": 0.1})):
        sampling = settings.load(sampling={"temperature": 0.2, "top_k": 4}).sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.1, 4, 0.5)
    assert settings.load(sampling={"seed": 3}).sampling.temperature == 0.6


def test_an_endpoint_is_a_url_or_a_table(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (nowhere / "stepspec.toml").write_text('[small]\nurl = "http://a:1/v1"\nmodel = "tiny"\n')
    monkeypatch.setenv("STEPSPEC_LARGE", "http://b:2")
    loaded = settings.load()
    assert isinstance(loaded.small, Endpoint)
    assert loaded.large is not None
    assert (loaded.small.role, loaded.small.v1, loaded.small.model) == (
        "small",
        "http://a:1/v1",
        "tiny",
    )
    assert (loaded.large.role, loaded.large.v1) == ("large", "http://b:2/v1")


def test_a_key_joins_the_url_of_another_source_but_no_key_goes_to_another_server(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (nowhere / "stepspec.toml").write_text(
        '[large]\nurl = "http://file:1"\napi_key = "of the file"\n'
    )
    assert key_of(settings.load().large) == "of the file"
    with with_command_line(flags(large={"api_key": "of the flag"})):
        loaded = settings.load().large
        assert (key_of(loaded), loaded and loaded.url) == ("of the flag", "http://file:1")
    with with_command_line(flags(large={"url": "http://flag:1"})):
        assert key_of(settings.load().large) is None
    assert key_of(settings.load(large="http://argument:1").large) is None
    assert (
        key_of(settings.load(large=Endpoint(role="large", url="http://argument:1")).large) is None
    )
    monkeypatch.setenv("STEPSPEC_LARGE", "http://variable:1")
    assert key_of(settings.load().large) is None
    monkeypatch.setenv("STEPSPEC_LARGE__API_KEY", "of the variable")
    loaded = settings.load().large
    assert (key_of(loaded), loaded and loaded.url) == ("of the variable", "http://variable:1")


def test_a_key_without_a_server_is_for_the_one_that_is_named_elsewhere(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (nowhere / "stepspec.toml").write_text(
        '[large]\nurl = "http://file:1"\napi_key = "of the file"\n'
    )
    monkeypatch.setenv("STEPSPEC_LARGE__API_KEY", "of the variable")
    for loaded in (settings.load(), settings.load(large="http://argument:1")):
        assert key_of(loaded.large) == "of the variable"
    with with_command_line(flags(large={"url": "http://flag:1"})):
        assert key_of(settings.load().large) == "of the variable"
    monkeypatch.setenv("STEPSPEC_LARGE__URL", "http://variable:1")  # now the key is for this server
    with with_command_line(flags(large={"url": "http://flag:1"})):
        assert key_of(settings.load().large) is None
    monkeypatch.setenv("STEPSPEC_CRITIC__API_KEY", "of the critic")
    critic = settings.load(critic="http://c:1").critic
    assert isinstance(critic, CriticEndpoint)
    assert critic.api_key is not None


def test_a_key_that_an_endpoint_has_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSPEC_LARGE__API_KEY", "secret")
    own = Endpoint.model_validate({"role": "large", "url": "http://a:1", "api_key": "own"})
    assert settings.load(large=own).large == own
    without = own.model_copy(update={"api_key": None})
    assert settings.load(large=without).large == without


def test_lists_are_lists_in_the_file_and_separated_by_commas_in_a_variable(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (nowhere / "stepspec.toml").write_text('[small]\nurl = "http://a:1/v1,http://a:2/v1"\n')
    monkeypatch.setenv("STEPSPEC_LARGE", "http://b:1,http://b:2/v1")
    monkeypatch.setenv("STEPSPEC_SERVICE__KEYS", "key-1, key-2")
    loaded = settings.load()
    assert isinstance(loaded.small, Endpoint)
    assert loaded.large is not None
    assert (loaded.small.urls, loaded.large.urls) == (
        ("http://a:1", "http://a:2"),
        ("http://b:1", "http://b:2"),
    )
    assert [key.get_secret_value() for key in loaded.service.keys] == ["key-1", "key-2"]
    assert "key-1" not in repr(loaded)


def test_options_belong_to_the_policy_that_was_set_with_them(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (nowhere / "stepspec.toml").write_text("[options]\nthreshold = 8\n")
    monkeypatch.setenv("STEPSPEC_OPTIONS__SURE", "0.2")
    assert settings.load().options == {"threshold": 8, "sure": 0.2}
    assert settings.load(policy="specreason").options == {"threshold": 8, "sure": 0.2}
    assert settings.load(policy="bild", options={"scale": "step"}).options == {"scale": "step"}
    (nowhere / "stepspec.toml").write_text('policy = "cascade"\n[options]\nthreshold = 0.3\n')
    # the variable is for the policy of the file
    assert settings.load().options == {"threshold": 0.3, "sure": 0.2}
    assert settings.load(policy="specreason").options == {}


VERIFIER = {"kind": "function", "function": "check"}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"polcy": "x"}, "unknown setting 'polcy' (did you mean 'policy'?)"),
        ({"budget": {"token": 1}}, "unknown setting 'budget.token'"),
        ({"small": "nonsense"}, "small.url: 'nonsense' is not the URL of a server"),
        ({"large": "http://a,http://a"}, "large.url: a URL is given twice"),
        ({"sampling": {"temperature": 9}}, "sampling.temperature"),
        ({"service": {"prot": 1}}, "unknown setting 'service.prot' (did you mean 'port'"),
        ({"service": {"host": "0.0.0.0"}}, "set STEPSPEC_SERVICE__KEYS"),
        ({"service": {"thinking": "loud"}}, "service.thinking"),
        ({"service": {"root_path": "api"}}, "service.root_path: String should match pattern"),
        (
            {"service": {"cors_origins": "https://a.example/, b.example"}},
            "String should match pattern",
        ),
        ({"small": {"small": "http://a"}}, "unknown setting 'small.small'"),
        ({"small": {"url": "http://a", "large": "http://b"}}, "unknown setting 'small.large'"),
        ({"critic": {"kind": "reward-model"}}, "critic.url: Field required"),
        ({"critic": {**VERIFIER, "kind": "http"}}, "'reward-model', 'function'"),
        ({"critic": {**VERIFIER, "layout": "chat"}}, "unknown setting 'critic.layout'"),
        ({"critic": {**VERIFIER, "fallback": "guess"}}, "critic.fallback"),
        ({"critic": {**VERIFIER, "seconds": 0}}, "critic.seconds"),
        ({"critic": {"url": "http://c:1", "judges": "answer"}}, "unknown setting 'critic.judges'"),
    ],
)
def test_wrong_arguments_are_named_by_their_path(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(complaint)):
        settings.load(**arguments)


@pytest.mark.parametrize(
    ("flag_values", "variables", "file", "complaint"),
    [
        (
            {"sampling": {"temperature": 9.0}},
            {},
            "",
            "--sampling-temperature 9.0: Input should be less than",
        ),
        (
            {},
            {"STEPSPEC_SAMPLING__TEMPERATURE": "9"},
            "",
            "STEPSPEC_SAMPLING__TEMPERATURE 9: Input should be less",
        ),
        ({}, {"stepspec_ahead": "-1"}, "", "stepspec_ahead -1: Input should be greater"),
        (
            {},
            {"STEPSPEC_SAMPLING": '{"top_p": 9}'},
            "",
            "STEPSPEC_SAMPLING top_p 9: Input should be less than",
        ),
        (
            {},
            {"STEPSPEC_LARGE": "ftp://h"},
            "",
            "STEPSPEC_LARGE: 'ftp://h' is not the URL of a server",
        ),
        ({}, {"STEPSPEC_OPTIONS": "{"}, "", "STEPSPEC_OPTIONS: .* the value has to be JSON"),
        ({}, {"STEPSPEC_SAMPLING": "x"}, "", "STEPSPEC_SAMPLING: .* the value has to be JSON"),
        ({}, {"STEPSPEC_BUDGET": "[1]"}, "", "STEPSPEC_BUDGET: .* the value has to be JSON"),
        ({}, {"STEPSPEC_BUDGET__TOKEN": "1"}, "", r"STEPSPEC_BUDGET__TOKEN \(did .*__TOKENS'"),
        ({}, {"STEPSPEC_AHEAD__DEPTH": "1"}, "", "STEPSPEC_AHEAD__DEPTH: Input should be a valid"),
        (
            {},
            {},
            "[sampling]\ntemperature = 9\n",
            r"stepspec\.toml: sampling\.temperature: Input should be less",
        ),
        ({}, {}, '[large]\napi_key = "k"\n', r"stepspec\.toml: large\.url: Field required"),
        (
            {},
            {},
            "[large]\nurll = 1\n",
            r"stepspec\.toml: .*; stepspec\.toml: unknown setting 'large\.urll' \(did you",
        ),
        (
            {},
            {},
            "\ufeffseed = 1\n",
            r"stepspec\.toml: unknown setting 'seed' \(did you mean 'sampling\.seed'\?\)",
        ),
        ({}, {"STEPSPEC_CONFIG": ""}, "", "STEPSPEC_CONFIG names '', which is not a file"),
        (
            {},
            {},
            "aheda = 1\n",
            r"stepspec\.toml: unknown setting 'aheda' \(did you mean 'ahead'\?\)",
        ),
        ({}, {}, "ahead = ", r"stepspec\.toml is no settings file: Invalid value"),
        ({}, {"STEPSPEC_AHEAD": "x"}, "lead = -1\n", r"STEPSPEC_AHEAD: .*; stepspec\.toml: lead: "),
    ],
)
def test_an_error_has_the_name_of_its_source(
    flag_values: dict[str, Any],
    variables: dict[str, str],
    file: str,
    complaint: str,
    nowhere: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (nowhere / "stepspec.toml").write_text(file)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with (
        with_command_line(flags(**flag_values)),
        pytest.raises(ConfigurationError, match=complaint),
    ):
        settings.load()


def test_no_error_shows_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSPEC_LARGE__URL", "http://h:1")
    with (
        with_command_line(flags(large={"api_key": 1234})),
        pytest.raises(ConfigurationError) as raised,
    ):
        settings.load()
    assert str(raised.value) == "--large-api_key: Input should be a valid string"


def test_errors_of_policies_have_the_name_of_their_source(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers: Any = {"small": "http://a:1", "large": "http://b:1"}
    (nowhere / "stepspec.toml").write_text("[options]\nthreshold = 80\n")
    with pytest.raises(
        ConfigurationError,
        match=r"^stepspec\.toml: options\.threshold: policy 'specreason', option 'threshold'",
    ):
        Solver(**servers)
    monkeypatch.setenv("STEPSPEC_POLICY", "bidl")
    with pytest.raises(ConfigurationError, match=r"^STEPSPEC_POLICY: there is no policy 'bidl'"):
        Solver(**servers)
    with pytest.raises(ConfigurationError, match=r"^policy: there is no policy 'specreasn'"):
        Solver(**servers, policy="specreasn")


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("STEPSPEC_LARGE__APIKEY", "STEPSPEC_LARGE__API_KEY"),
        ("STEPSPEC_LARG__URL", "STEPSPEC_LARGE__URL"),
        ("STEPSPEC_LARGE_API_KEY", "STEPSPEC_LARGE__API_KEY"),
        ("STEPSPEC_SMALL__DEADLINES_FIRST", "STEPSPEC_SMALL__DEADLINES__FIRST"),
        ("STEPSPEC_OPTIONS_THRESHOLD", "STEPSPEC_OPTIONS__THRESHOLD"),
        ("STEPSPEC_SEED", "STEPSPEC_SAMPLING__SEED"),
        ("STEPSPEC_SERVICE__MAX_RUNING", "STEPSPEC_SERVICE__MAX_RUNNING"),
        ("STEPSPEC_SMALL__DEADLINES__CONECT", "STEPSPEC_SMALL__DEADLINES__CONNECT"),
        ("stepspec_polcy", "STEPSPEC_POLICY"),
    ],
)
def test_a_misspelt_variable_suggests_the_right_one(
    variable: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "1")
    with pytest.raises(
        ConfigurationError, match=rf"unknown setting {variable} \(did you mean '{meant}'\?\)"
    ):
        settings.load()


def test_a_variable_that_is_like_none_is_an_error_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSPEC_QQQQQQQQQQQQQQQQ", "1")
    with pytest.raises(
        ConfigurationError, match=r"unknown setting STEPSPEC_Q+; `stepspec config show` lists"
    ):
        settings.load()


def test_a_file_that_is_named_on_the_command_line_comes_first(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, ahead in (("stepspec.toml", 1), ("variable.toml", 2), ("flag.toml", 3)):
        (nowhere / name).write_text(f"ahead = {ahead}\n")
    assert settings.load().ahead == 1
    monkeypatch.setenv("STEPSPEC_CONFIG", "variable.toml")
    assert settings.load().ahead == 2
    with with_command_line(CommandLine({}, {}, file=Path("flag.toml"))):
        assert settings.load().ahead == 3
    with (
        with_command_line(CommandLine({}, {}, file=Path("other.toml"))),
        pytest.raises(
            ConfigurationError, match=r"^--config names 'other\.toml', which is not a file"
        ),
    ):
        settings.load()
    monkeypatch.setenv("STEPSPEC_CONFIG", "gone.toml")
    with pytest.raises(ConfigurationError, match=r"^STEPSPEC_CONFIG names 'gone\.toml'"):
        settings.load()


def test_every_setting_is_shown_with_its_source_and_no_secret(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    (nowhere / "mine.toml").write_text(FILE)
    monkeypatch.setenv("STEPSPEC_AHEAD", "4")
    monkeypatch.setenv("STEPSPEC_SMALL", "http://small:1")
    monkeypatch.setenv("STEPSPEC_SMALL__API_KEY", "SECRET-OF-THE-VARIABLE")
    flags = (
        "--config",
        "mine.toml",
        "--large-api-key",
        "SECRET-OF-THE-FLAG",
        "--top-p",
        "0.5",
        "-O",
        "rollback=3",
    )
    assert call("config", "show", "--json", *flags) == 0
    printed = capfd.readouterr().out
    assert "SECRET" not in printed
    shown = orjson.loads(printed)
    assert shown["ahead"] == {"value": 4, "source": "variable", "name": "STEPSPEC_AHEAD"}
    assert shown["policy"] == {"value": "bild", "source": "file", "name": "mine.toml: policy"}
    assert shown["options.scale"] == {
        "value": "step",
        "source": "file",
        "name": "mine.toml: options.scale",
    }
    assert shown["options.rollback"] == {"value": 3, "source": "flag", "name": "--option rollback"}
    assert shown["large.url"]["value"] == "http://host:1"
    (nowhere / "texts").mkdir()
    (nowhere / "texts" / "check.txt").write_text("Right?")
    monkeypatch.setenv("STEPSPEC_PROMPTS_DIR", "texts")
    monkeypatch.setenv("STEPSPEC_LARGE__TEMPLATE__ENABLE_THINKING", "false")
    assert call("config", "show", "--json", *flags) == 0
    shown = orjson.loads(capfd.readouterr().out)
    assert shown["prompts_dir"]["value"] == "texts"
    assert shown["large.template.enable_thinking"]["value"] is False
    assert shown["large.api_key"] == {
        "value": "**********",
        "source": "flag",
        "name": "--large-api-key",
    }
    assert shown["small.api_key"]["name"] == "STEPSPEC_SMALL__API_KEY"
    assert shown["small.url"]["name"] == "STEPSPEC_SMALL"
    assert shown["service.keys"] == {
        "value": ["**********"],
        "source": "file",
        "name": "mine.toml: service.keys",
    }
    assert shown["sampling.top_p"] == {"value": 0.5, "source": "flag", "name": "--top-p"}
    assert shown["sampling.top_k"] == {"value": 0, "source": "default", "name": ""}
    assert call("config", "show", *flags) == 0
    table = capfd.readouterr().out
    assert "SECRET" not in table
    for name, each in shown.items():
        row = next(line.split() for line in table.splitlines() if line.split()[0] == name)
        assert row[-1] == (each["name"] or each["source"]).split()[-1]
