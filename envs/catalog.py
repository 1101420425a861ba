"""The environments that jaxrl itself brings: id -> "module:class", imported on demand."""

OWN_ENVS = {
    "CartPole-v1": "jaxrl.envs.classic.cartpole:CartPole",
}
