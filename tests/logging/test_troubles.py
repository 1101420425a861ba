"""Troubles in a line for people: what went wrong, and no accounts of what went right."""

from jaxrl.loggers.text import fault_counts


def test_accounts_are_no_troubles() -> None:
    result = {
        "fault_tolerance": {
            "num_env_steps_received_lifetime": 500,
            "num_healthy_env_runners": 2,
            "num_env_runner_restarts": 3,
            "num_sub_env_restarts": 0,
            "num_nonfinite_updates": 1,
        }
    }
    assert dict(fault_counts(result)) == {"env runner restarts": 3, "nonfinite updates": 1}
