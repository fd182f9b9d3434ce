"""What a study searches: declared beside the fields, told otherwise, or refused in a sentence."""

from __future__ import annotations

import pytest

from velodrome.errors import ConfigError
from velodrome.runs.config.files import load_run_config
from velodrome.tune.space import Dimension, space_of, starting_point

DEMO = load_run_config("demo")


def told(space):
    return {one.key: one.told() for one in space}


def test_ranges_are_declared_beside_the_fields_and_hold_what_the_configuration_has():
    space = space_of(DEMO)
    assert told(space)["ppo.learning_rate"] == "3e-05:0.003:log"
    # The preset's own value lies below the declared range, and what is lower may be better.
    assert told(space)["ppo.gamma"] == "0.1:0.999"
    near, far = (told(space_of(load_run_config("demo", {"ppo.gamma": gamma}))) for gamma in (0.8, 0.0))
    assert (near["ppo.gamma"], far["ppo.gamma"]) == ("0.7:0.999", "0:0.999")
    few = told(space_of(load_run_config("demo", {"ppo.rollout_length": 2, "ppo.learning_rate": 0.01})))
    assert (few["ppo.rollout_length"], few["ppo.learning_rate"]) == ("1:128:log", "3e-05:0.017:log")
    assert {one.key for one in space if one.whole} == {"ppo.rollout_length", "ppo.epochs", "ppo.minibatches"}
    assert all(one.holds(value) for one, value in zip(space, starting_point(DEMO, space).values(), strict=True))
    assert told(space)["teacher.hold"] == "0:0.3"  # the preset has a teacher
    untaught = {one.key for one in space_of(load_run_config("demo", {"teacher.policy": None}))}
    assert untaught == {one.key for one in space} - {"teacher.hold"}
    by_itself = space_of(load_run_config("demo", {"teacher.hold": "auto"}))
    assert told(by_itself) == told(space)
    assert not by_itself[-1].holds("auto")
    dqn = {one.key for one in space_of(load_run_config("demo_dqn"))}
    assert {"dqn.target_every", "dqn.n_step"} <= dqn
    assert not {key for key in dqn if key.startswith("ppo.")}


def test_what_is_told_replaces_what_is_declared_and_what_is_fixed_stays():
    search = ["learning_rate=1e-5:1e-2:log", "network.activation=tanh,relu", "ppo.epochs=2:6"]
    space = told(space_of(DEMO, search, fixed=["ppo.gamma"]))
    assert space["ppo.learning_rate"] == "1e-05:0.01:log"
    assert space["network.activation"] == "[tanh, relu]"
    assert space["ppo.epochs"] == "2:6"
    assert "ppo.gamma" not in space
    (windows,) = space_of(DEMO, ["market.windows=4:12"], only=True)  # which may also be a mapping, by timeframe
    assert windows.whole
    assert list(told(space_of(DEMO, {"ppo.clip": [0.1, 0.2]}, only=True))) == ["ppo.clip"]


def test_the_share_of_a_value_leads_back_to_it():
    whole = [Dimension("a", 1, 9, whole=True), Dimension("b", 1, 128, log=True, whole=True)]
    for one in (*whole, Dimension("c", -2.0, 7.0), Dimension("d", 1e-5, 1e-2, log=True), Dimension("e", choices="xyz")):
        for share in (0.0, 0.1, 0.5, 0.77, 1.0):
            value = one.at(share)
            assert one.holds(value)
            assert one.at(one.share(value)) == pytest.approx(value)
            assert 0.0 <= one.share(value) <= 1.0


@pytest.mark.parametrize(
    ("search", "problem"),
    [
        ("ppo.learning_rat=1:2", "unknown key 'ppo.learning_rat'. Did you mean 'ppo.learning_rate'?"),
        ("seed=1:5", "this field is fixed in a study: the study gives each training its seed"),
        ("steps=1:5", "trials of different length do not compare"),
        ("evaluation.split=[a, b]", "trials are compared by the same evaluation"),
        ("market.length=100:200", "trials are compared on the same data"),
        ("market.splits=[1, 2]", "trials are compared on the same data"),
        ("params.fee=0:0.1", "it says what trading costs"),
        ("ppo=1:2", "it is a section; name one of its fields"),
        ("dqn.updates=1:3", "it would have no effect: algorithm is ppo"),
        ("ppo.clip=0.4:0.1", "from a lower to a higher number"),
        ("ppo.clip=nan:1", "from a lower to a higher number"),
        ("ppo.clip=0:99", "ppo.clip = 0.0: not legal"),
        ("ppo.clip=0:1:log", "a logarithmic scale begins above 0"),
        ("ppo.clip=0.1:1:lin", "the scale is 'lin'"),
        ("ppo.clip=a:b", "the ends of a range are numbers"),
        ("ppo.epochs=1.5:3", "ppo.epochs takes whole numbers"),
        ("market.windows=4.5:12", "market.windows takes whole numbers"),
        ("ppo.normalise_rewards=0:1", "ppo.normalise_rewards = 0.37: not legal; it takes: true or false"),
        ("network.activation=tanh,rlu", "network.activation = 'rlu': not legal"),
        ("ppo.clip=[0.1]", "2 to 1,000 different values"),
        ("ppo.clip", "write key=low:high"),
    ],
)
def test_what_cannot_be_searched_is_refused_in_a_sentence(search, problem):
    with pytest.raises(ConfigError) as error:
        space_of(DEMO, [search])
    assert problem in str(error.value)
    assert search.partition("=")[0] in str(error.value)


def test_a_field_with_a_value_and_a_range_or_nothing_to_search_is_refused():
    with pytest.raises(ConfigError, match=r"ppo\.clip is given a value and a range to search"):
        space_of(DEMO, ["ppo.clip=0.1:0.3"], fixed=["ppo.clip"])
    with pytest.raises(ConfigError, match="nothing is left to search"):
        space_of(DEMO, fixed=[one.key for one in space_of(DEMO)])
    with pytest.raises(ConfigError, match="given twice"):
        space_of(DEMO, ["ppo.gae_lambda=0.8:0.9", "gae_lambda=0.8:1"])


def test_values_cover_a_range_evenly_and_stay_in_it():
    whole = Dimension("ppo.epochs", 1, 4, whole=True)
    assert [whole.at(share) for share in (0.0, 0.24, 0.26, 0.49, 0.51, 0.76, 0.999)] == [1, 1, 2, 2, 3, 4, 4]
    log = Dimension("ppo.learning_rate", 1e-5, 1e-3, log=True)
    assert log.at(0.5) == pytest.approx(1e-4)
    assert Dimension("x", choices=("a", "b", "c")).at(0.999) == "c"
    assert Dimension.read(log.content()) == log
