"""The environments that jaxrl itself brings: id -> "module:class", imported on demand."""

OWN_ENVS = {
    "CartPole-v1": "jaxrl.envs.classic.cartpole:CartPole",
    "Acrobot-v1": "jaxrl.envs.classic.acrobot:Acrobot",
    "MountainCar-v0": "jaxrl.envs.classic.mountain_car:MountainCar",
    "MountainCarContinuous-v0": "jaxrl.envs.classic.mountain_car:MountainCarContinuous",
    "Pendulum-v1": "jaxrl.envs.classic.pendulum:Pendulum",
}
