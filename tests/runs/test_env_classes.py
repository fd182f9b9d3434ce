"""`vd.train` and `velodrome train` with an environment's class or function, which nobody has registered."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

import velodrome as vd
from tests.runs import own_env
from tests.runs.own_env import MyEnv, Picture, make_my_env
from tests.runs.small_runs import one_thread  # noqa: F401
from velodrome import cli
from velodrome.errors import CheckpointError, ConfigError
from velodrome.learn.policy_files import FlatPolicy, export_torchscript
from velodrome.rollout.observation import Observation
from velodrome.rollout.worlds import make_worlds
from velodrome.runs import setup
from velodrome.runs.config.files import load_run_config
from velodrome.runs.config.run_config import RunConfig
from velodrome.runs.folder import RunFolder
from velodrome.runs.trained import run_name

SETTINGS = {"steps": 256, "num_envs": 4, "vector.env_type": "serial", "ppo.rollout_length": 16, "device": "cpu"}
NAME = "tests.runs.own_env:MyEnv"


def test_a_class_trains_and_is_found_again(tmp_path):
    about = {**SETTINGS, "logging.folder": tmp_path, "params": {"length": 4}, "evaluation.every_steps": None}
    run = vd.train(env=MyEnv, mode="quiet", evaluate=False, **about)
    assert run.config.env == NAME
    assert run.config.params == {"length": 4}
    assert vd.Run.open(run.path).policy.act(MyEnv.observation_space.sample()).shape == ()
    again = vd.resume(run, mode="quiet", evaluate=False, steps=320)
    assert again.status == "finished"


def test_pictures_are_learnt_and_acted_upon_in_numbers_of_about_one(tmp_path):
    about = {**SETTINGS, "steps": 1_024, "logging.folder": tmp_path, "evaluation.every_steps": None}
    run = vd.train(env=Picture, mode="quiet", evaluate=False, **about)
    policy, found = run.policy, run.find_checkpoint()
    pictures = np.random.default_rng(0).integers(0, 256, (32, 2, 3, 1), np.uint8)
    flat = torch.from_numpy(pictures.reshape(32, 6)).float()
    expected = policy.decide(Observation(flat / 255.0), torch.zeros(32, 0))[0].numpy()
    assert 0 < expected.sum() < 32
    np.testing.assert_array_equal(policy.act(pictures), expected)
    np.testing.assert_array_equal(FlatPolicy(policy)(flat)[0], expected)
    export_torchscript(policy, tmp_path / "policy.pt")  # which compares the file with the policy
    worlds = make_worlds(vd.make_vec(Picture, 2, backend="serial"))
    worlds.reset(0)
    assert 0.0 <= worlds.observation.values.min() < 0.5 < worlds.observation.values.max() <= 1.0
    # A checkpoint of a version that learnt from bytes as they are.
    older = {name: value for name, value in found.plain["agent"].items() if name != "bytes"}
    as_they_are = setup.load_policy(found.tensors, {**found.plain, "agent": older}, Picture.observation_space)
    np.testing.assert_array_equal(as_they_are.act(pictures), policy.decide(Observation(flat), torch.zeros(32, 0))[0])
    with pytest.raises(CheckpointError, match=r"learnt from bytes as they are.* start a new run"):
        setup.check_agent(older, setup.describe_agent(run.config, worlds), "here")


def test_a_class_of_the_script_trains(tmp_path, monkeypatch):
    own = type("Mine", (MyEnv,), {"__module__": "__main__"})
    monkeypatch.setattr(sys.modules["__main__"], "Mine", own, raising=False)
    about = {**SETTINGS, "steps": 64, "logging.folder": tmp_path, "evaluation.every_steps": None}
    run = vd.train(env=own, mode="quiet", evaluate=False, **about)
    assert run.config.env == "__main__:Mine"
    assert run.path.name.startswith("Mine-")


@pytest.mark.parametrize(
    ("env", "name"),
    [
        (NAME, "tests.runs.own_env-MyEnv"),
        ("_private.envs:Own", "private.envs-Own"),
        ("Space/Env-v0", "Space-Env-v0"),
        ("größe:Überall", "gr--e--berall"),
        ("module." * 20 + ":Own", ("module." * 20)[:100]),
    ],
)
def test_any_environment_may_name_a_folder(env, name, tmp_path):
    assert run_name(RunConfig.model_construct(env=env)) == name
    assert RunFolder.create(tmp_path, name).path.is_dir()


def test_the_command_takes_a_name(tmp_path, monkeypatch, capsys):
    words = [f"{key}={value}" for key, value in {**SETTINGS, "logging.folder": tmp_path}.items()]
    command = ["train", "env=tests.runs.own_env:make_my_env", *words, "--quiet", "--no-evaluation"]
    assert cli.run(command) == 0, capsys.readouterr().err


@pytest.mark.parametrize(("env", "name"), [(MyEnv, "MyEnv"), (make_my_env, "make_my_env")])
def test_it_is_kept_as_text(env, name):
    for config in (load_run_config({"env": env}), load_run_config(None, {"env": env}), load_run_config(env_of(env))):
        assert config.env == f"tests.runs.own_env:{name}"


def env_of(env):
    return RunConfig(env=env)


def test_what_has_no_name_is_refused():
    for env in (lambda: MyEnv(), type("Local", (MyEnv,), {"__qualname__": "f.<locals>.Local"})):
        with pytest.raises(ConfigError, match=r"kept as text.*Give a class or a function from the top level"):
            load_run_config({"env": env})


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ("tests.runs.own_env:needs_data", r"cannot be made: TypeError: .*missing 1 required.*params\.NAME="),
        ("tests.runs.own_env:NoEnv", "NoEnv made tests.runs.own_env.NoEnv, which is not a gymnasium.Env"),
        ("tests.runs.own_env:MyEnw", "module 'tests.runs.own_env' has no 'MyEnw'.* Did you mean 'MyEnv'"),
        ("tests.runs.nowhere:MyEnv", "the module 'tests.runs.nowhere' cannot be imported"),
    ],
)
def test_mistakes_are_told_before_there_is_a_run(env, told, tmp_path):
    with pytest.raises(ConfigError, match=told):
        vd.train(env=env, mode="quiet", **{**SETTINGS, "logging.folder": tmp_path})
    assert not list(tmp_path.iterdir())


def test_vectorisers_take_the_name_too():
    envs = vd.make_vec(NAME, 2, backend="serial", length=3)
    assert envs.reset()[0].shape == (2, 3)
    envs.close()
    assert own_env.MyEnv is MyEnv
