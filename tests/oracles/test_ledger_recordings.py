"""The ledger replays the accounts that were recorded from TorchTrade."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.oracles.ledger_cases import FLAT_BAR
from tests.oracles.trading_ledger import TradingLedger

RECORDINGS = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "torchtrade" / "public"


# -------------------------------------------------------------------------------------- Recorded torchtrade accounts


def recorded_files() -> list:
    if not RECORDINGS.is_dir():
        reason = f"the recorded torchtrade trajectories are not here: {RECORDINGS}"
        return [pytest.param(None, marks=pytest.mark.skip(reason=reason), id="absent")]
    files = [path for path in sorted(RECORDINGS.glob("*.npz")) if not path.name.startswith("data_")]
    return [pytest.param(path, id=path.stem) for path in files]


def torchtrade_parameters(description: dict) -> dict:
    """The ledger's parameters for a recorded configuration (FORMAT.md, sections 4 and 5)."""
    config = description["config"]
    parameters = {
        "initial_cash": float(config["initial_cash"]),
        "fee": config["transaction_fee"],
        "leverage": float(config["leverage"]),
        "maintenance_margin": config["maintenance_margin_rate"],
        "bankrupt_at": config["bankrupt_threshold"],
        "fill": "close",
        "account_values": "torchtrade",
    }
    if description["kind"] == "base":
        levels = config["action_levels"]
        # Shorts need leverage there, and a level that asks for them.
        return parameters | {"levels": levels, "allow_short": config["leverage"] > 1 and min(levels) < 0}
    return parameters | {
        "action_kind": "brackets",
        "allow_short": config["leverage"] > 1,
        "stop_loss": [-level for level in config["stoploss_levels"]],  # negative there
        "take_profit": config["takeprofit_levels"],
        "include_hold": config["include_hold_action"],
        "include_close": config["include_close_action"],
        "lock_position": config["lock_position_until_sltp"],
        "trade_mode": config["trade_mode"],
        "position_fraction": config["position_fraction"],
        "quantity_per_trade": config["quantity_per_trade"],
    }


def replay(parameters: dict, recording: dict) -> dict[str, np.ndarray]:
    """What the ledger makes of the recorded bars and actions; arrays as in FORMAT.md, section 1."""
    values: dict[str, list] = {name: [] for name in COMPARED}
    for episode, (first, end) in enumerate(zip(recording["ep_offset"][:-1], recording["ep_offset"][1:], strict=True)):
        # Prices are float32 and used as float64.
        rows = [recording["ep_reset_ohlcv"][episode].tolist(), *recording["bar_ohlcv"][first:end].tolist()]
        last = int(recording["ep_end_index"][episode] - recording["ep_start_index"][episode]) - 1
        rows += rows[-1:] * (last + 1 - len(rows))  # never reached: the episode was terminated before
        account = TradingLedger(ohlc=rows, **parameters)
        account.reset(0, last)
        assert account.equity == recording["ep_reset_portfolio_value"][episode]
        assert account.account_vector() == recording["ep_reset_account_state"][episode].tolist()
        for action in recording["action"][first:end].tolist():
            result = account.step(action)
            values["balance"].append(account.cash)
            values["position_size"].append(account.units)
            values["entry_price"].append(account.entry)
            values["portfolio_value"].append(account.equity)
            values["hold_counter"].append(account.hold_counter)
            values["liquidation_price"].append(account.liquidation_price)
            values["stop_loss"].append(account.stop)
            values["take_profit"].append(account.target)
            values["reward64"].append(result.reward)
            values["terminated"].append(result.terminated)
            values["truncated"].append(result.truncated)
            values["account_state"].append(account.account_vector())
        assert result.terminated or result.truncated
    return {name: np.array(column) for name, column in values.items()}


COMPARED = (
    *("balance", "position_size", "entry_price", "portfolio_value", "hold_counter", "liquidation_price"),
    *("stop_loss", "take_profit", "reward64", "terminated", "truncated", "account_state"),
)


@pytest.mark.parametrize("path", recorded_files())
def test_recorded_torchtrade_accounts(path):
    """Tolerances of FORMAT.md, section 6."""
    with np.load(path, allow_pickle=False) as file:
        recording = {name: file[name] for name in file.files if not name.startswith("win_")}
    description = json.loads(str(recording["config"]))
    parameters = torchtrade_parameters(description)
    if description["kind"] == "sltp":
        check_action_map(description["config"]["action_map"], parameters)
    ours = replay(parameters, recording)

    soft = recording["soft"]
    cash = parameters["initial_cash"]
    for name in ("terminated", "truncated"):
        np.testing.assert_array_equal(ours[name], recording[name], err_msg=name)
    assert np.all(np.abs(ours["portfolio_value"][soft]) <= 1e-6 * cash)

    firm = ~soft
    np.testing.assert_array_equal(ours["hold_counter"][firm], recording["hold_counter"][firm])
    absolute = {"balance": 1e-9 * max(1.0, cash), "portfolio_value": 1e-9 * max(1.0, cash), "reward64": 1e-9}
    for name, tolerance in absolute.items():
        np.testing.assert_allclose(ours[name][firm], recording[name][firm], rtol=0.0, atol=tolerance, err_msg=name)
    for name in ("position_size", "entry_price", "liquidation_price", "stop_loss", "take_profit"):
        np.testing.assert_allclose(ours[name][firm], recording[name][firm], rtol=1e-9, atol=0.0, err_msg=name)
    account_state = recording["account_state"].astype(np.float64)
    tolerance = 1.2e-7 * np.maximum(1.0, np.abs(account_state))
    difference = np.abs(ours["account_state"].astype(np.float32).astype(np.float64) - account_state)
    assert np.all((difference <= tolerance)[firm])


def check_action_map(recorded: list, parameters: dict) -> None:
    """The recorded list writes a short's stop and target with their signs flipped."""
    account = TradingLedger(ohlc=[FLAT_BAR], **parameters)
    ours = []
    for kind, direction, stop, target in account.bracket_actions:
        name = {"hold": None, "close": "close", "entry": "long" if direction > 0 else "short"}[kind]
        signs = (-direction * stop, direction * target) if kind == "entry" else (None, None)
        ours.append([name, *signs])
    assert ours == recorded
