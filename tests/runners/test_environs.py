"""Environment variables of actors."""

from jaxrl.runtime.env_vars import actor_environs


def test_actors_see_no_accelerator_and_share_the_cores() -> None:
    one = actor_environs(0.5, {})
    assert one["JAX_PLATFORMS"] == "cpu"
    assert one["CUDA_VISIBLE_DEVICES"] == ""
    assert one["JAX_NUM_CPU_DEVICES"] == one["NPROC"] == one["OMP_NUM_THREADS"] == "1"
    assert one["XLA_FLAGS"] == "--xla_cpu_multi_thread_eigen=false"
    four = actor_environs(4.0, {"OMP_NUM_THREADS": "2"})
    assert (four["NPROC"], four["OMP_NUM_THREADS"], four["XLA_FLAGS"]) == ("4", "2", "")
