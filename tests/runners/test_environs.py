"""Environment variables of actors."""

from jaxrl.runtime.env_vars import make_actor_env_vars


def test_actors_see_no_accelerator_and_share_the_cores() -> None:
    one = make_actor_env_vars(0.5, {})
    assert one["JAX_PLATFORMS"] == "cpu"
    assert one["CUDA_VISIBLE_DEVICES"] == ""
    assert one["JAX_NUM_CPU_DEVICES"] == one["NPROC"] == one["OMP_NUM_THREADS"] == "1"
    assert one["XLA_FLAGS"] == "--xla_cpu_multi_thread_eigen=false"
    four = make_actor_env_vars(4.0, {"OMP_NUM_THREADS": "2"})
    assert (four["NPROC"], four["OMP_NUM_THREADS"], four["XLA_FLAGS"]) == ("4", "2", "")
