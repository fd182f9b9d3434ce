"""The options of workers are declared once; whether one was given is known, and one that would be idle is refused."""

from __future__ import annotations

import annotated_types
import gymnasium
import pytest

import velodrome as vd
from velodrome.errors import ConfigError
from velodrome.vector.config import field_name
from velodrome.vector.make import RULE_DEFAULTS
from velodrome.vector.workers.options import DEFAULTS, OPTIONS, PROCESS_OPTIONS, WorkerOptions


@pytest.mark.parametrize("name", OPTIONS)
def test_the_configuration_has_the_default_and_the_range_of_the_option(name):
    field = vd.VectorizedEnvConfig.model_fields[field_name(name)]
    assert field.default == DEFAULTS[name]
    bounds = {"ge": annotated_types.Ge, "gt": annotated_types.Gt, "le": annotated_types.Le}
    found = {key: getattr(each, key) for key, kind in bounds.items() for each in field.metadata if type(each) is kind}
    assert found == OPTIONS[name].bounds


def test_every_option_has_a_declaration_and_stands_in_the_help():
    assert set(OPTIONS) == set(DEFAULTS)
    for name, default in {**DEFAULTS, **RULE_DEFAULTS}.items():
        shown = f'"{default}"' if isinstance(default, str) else repr(default)
        assert f"    {name}={shown}: " in vd.make_vec.__doc__


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, r"workers = 0: needs 1 … 1024, or None for one per core"),
        ({"workers": True}, r"workers = True: needs"),
        ({"workers": "2"}, r"workers = '2': needs"),
        ({"start_method": "fork"}, r"start_method = 'fork'; legal: forkserver, spawn\..*Forking .* is not offered"),
        ({"on_fault": "restrat"}, r"on_fault = 'restrat'; legal: raise, restart, drop\. Did you mean 'restart'\?"),
        ({"max_restarts": -1}, r"max_restarts = -1: needs a whole number of at least 0"),
        ({"max_restarts": None}, r"max_restarts = None: needs"),
        ({"timeout": 0}, r"timeout = 0: needs seconds above 0, or None to wait for ever"),
        ({"memory_limit": 0}, r"memory_limit = 0: needs bytes above 0, or None for no limit"),
    ],
)
def test_an_illegal_value_is_refused_with_what_is_legal(options, message):
    with pytest.raises(ConfigError, match=message):
        vd.make_vec("CartPole-v1", 2, backend="process", **options)


def test_legal_values_are_taken():
    assert WorkerOptions(workers=3, timeout=None, max_restarts=0).workers == 3
    assert WorkerOptions(timeout=2, memory_limit=1).timeout == 2


@pytest.mark.parametrize("name", [name for name in OPTIONS if name != "check_values"])
def test_a_rule_refuses_an_option_that_was_given_even_with_its_default(name):
    default = DEFAULTS[name]
    if default is None:  # the usual way to give nothing
        assert vd.make_vec("template", 2, **{name: None}).num_envs == 2
        default = 1
    with pytest.raises(ConfigError, match=f"{name} is an option of environments of other libraries"):
        vd.make_vec("template", 2, **{name: default})


@pytest.mark.parametrize("name", PROCESS_OPTIONS)
def test_serial_refuses_an_option_of_processes_even_with_its_default(name):
    with pytest.raises(ConfigError, match=f"{name} is of worker processes, and backend = 'serial' has none"):
        vd.make_vec("CartPole-v1", 2, backend="serial", **{name: DEFAULTS[name] or 1})


@pytest.mark.parametrize("name", RULE_DEFAULTS)
def test_an_environment_of_another_library_refuses_an_option_of_rules(name):
    given = 1 if RULE_DEFAULTS[name] is None else RULE_DEFAULTS[name]
    with pytest.raises(ConfigError, match=f"{name} is an option of rules of Velodrome"):
        vd.make_vec("CartPole-v1", 2, backend="serial", **{name: given})


def test_an_option_that_a_measurement_makes_idle_is_told(capfd):
    """Of one environment no worker could be faster: auto needs no process to know."""
    envs = vd.make_vec("CartPole-v1", 1, backend="auto", timeout=5.0, on_fault="restart")
    assert envs.backend == "serial"
    assert envs.options.on_fault == "restart"
    envs.close()
    told = capfd.readouterr().err
    assert "timeout = 5.0 has no effect: the environments run in this process" in told
    assert "on_fault" not in told


def test_what_a_configuration_leaves_at_its_default_is_not_given():
    assert vd.VectorizedEnvConfig(env_type="serial").foreign_options() == {"backend": "serial"}
    chosen = vd.VectorizedEnvConfig(env_type="process", workers=2, timeout=None, worker_memory=64)
    expected = {"backend": "process", "workers": 2, "timeout": None, "memory_limit": 64 << 20}
    assert chosen.foreign_options() == expected


def test_other_keywords_are_parameters_of_the_environment():
    envs = vd.make_vec("CartPole-v1", 2, backend="serial", max_episode_steps=3)
    assert isinstance(envs, gymnasium.vector.VectorEnv)
    assert envs.spec.max_episode_steps == 3
    envs.close()
