"""A reward of the user's own for CAGE-2, in one place, so that all tests find one another's compiled loops."""

from __future__ import annotations


def everything(old, new):
    """Depend on every field, so that a wrong one is seen."""
    return (
        new.privileged + 3 * new.user + 5 * new.removable + 7 * new.files + 11 * new.discovered + 13 * new.scanned
        + new.service_up + 17 * new.scans_shown + 19 * new.exploits_shown + 23 * new.suspected + new.blue_action
        + new.blue_success + new.red_action + new.red_target + new.red_success + new.step - old.step + new.official
        - old.official + old.blue_action + 29 * (new.decoys & 1) + 31 * (old.privileged ^ new.privileged)
    )  # fmt: skip
