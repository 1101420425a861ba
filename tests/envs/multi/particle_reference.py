"""The published rules of three particle tasks as loops over bodies, in NumPy and float64."""

import dataclasses
from typing import Any

import numpy as np

DT, DAMPING, CONTACT_FORCE, CONTACT_MARGIN = 0.1, 0.25, 100.0, 1e-3


@dataclasses.dataclass
class Thing:
    name: str
    size: float
    place: np.ndarray
    speed: np.ndarray
    movable: bool = True
    collide: bool = True
    accel: float = 5.0
    top_speed: float | None = None


def agents_of(world: list[Thing], prefix: str = "") -> list[Thing]:
    return [t for t in world if not t.name.startswith("landmark") and t.name.startswith(prefix)]


def landmarks_of(world: list[Thing]) -> list[Thing]:
    return [t for t in world if t.name.startswith("landmark")]


def apart(one: Thing, other: Thing) -> float:
    return float(np.sqrt(np.sum((one.place - other.place) ** 2)))


def touch(one: Thing, other: Thing) -> bool:
    return apart(one, other) < one.size + other.size


def control(action: Any) -> np.ndarray:
    if np.ndim(action) == 1:
        return np.array([action[2] - action[1], action[4] - action[3]], np.float64)
    return np.array([[0, 0], [-1, 0], [1, 0], [0, -1], [0, 1]], np.float64)[action]


def move(world: list[Thing], actions: dict[str, Any]) -> None:
    force = {t.name: np.zeros(2) for t in world}
    for thing in world:
        if thing.movable and thing.name in actions:
            force[thing.name] += thing.accel * control(actions[thing.name])
    for a, one in enumerate(world):
        for other in world[a + 1 :]:
            if not (one.collide and other.collide):
                continue
            gap = (one.size + other.size - apart(one, other)) / CONTACT_MARGIN
            depth = np.logaddexp(0.0, gap) * CONTACT_MARGIN
            push = CONTACT_FORCE * (one.place - other.place) / apart(one, other) * depth
            force[one.name] += push
            force[other.name] -= push
    for thing in world:
        if not thing.movable:
            continue
        thing.place = thing.place + thing.speed * DT
        thing.speed = thing.speed * (1 - DAMPING) + force[thing.name] * DT
        fast = float(np.linalg.norm(thing.speed))
        if thing.top_speed is not None and fast > thing.top_speed:
            thing.speed = thing.speed / fast * thing.top_speed


# --- spread ---


def spread_world(agents: np.ndarray, speeds: np.ndarray, landmarks: np.ndarray) -> list[Thing]:
    world = [Thing(f"agent_{i}", 0.15, p, speeds[i]) for i, p in enumerate(agents)]
    for i, place in enumerate(landmarks):
        world.append(Thing(f"landmark_{i}", 0.05, place, np.zeros(2), movable=False, collide=False))
    return world


def spread_obs(world: list[Thing], agent: Thing) -> np.ndarray:
    others = [t for t in agents_of(world) if t is not agent]
    parts = [agent.speed, agent.place]
    parts += [mark.place - agent.place for mark in landmarks_of(world)]
    parts += [other.place - agent.place for other in others]
    parts += [np.zeros(2) for _ in others]
    return np.concatenate(parts)


def spread_reward(world: list[Thing], agent: Thing, local_ratio: float = 0.5) -> float:
    shared = -sum(min(apart(a, m) for a in agents_of(world)) for m in landmarks_of(world))
    own = -sum(touch(agent, other) for other in agents_of(world) if other is not agent)
    return shared * (1 - local_ratio) + own * local_ratio


# --- tag ---


def tag_world(
    agents: np.ndarray, speeds: np.ndarray, landmarks: np.ndarray, num_adversaries: int
) -> list[Thing]:
    world: list[Thing] = []
    for i, place in enumerate(agents):
        if i < num_adversaries:
            thing = Thing(f"adversary_{i}", 0.075, place, speeds[i], accel=3.0, top_speed=1.0)
        else:
            name = f"agent_{i - num_adversaries}"
            thing = Thing(name, 0.05, place, speeds[i], accel=4.0, top_speed=1.3)
        world.append(thing)
    for i, place in enumerate(landmarks):
        world.append(Thing(f"landmark_{i}", 0.2, place, np.zeros(2), movable=False))
    return world


def tag_obs(world: list[Thing], agent: Thing) -> np.ndarray:
    others = [t for t in agents_of(world) if t is not agent]
    parts = [agent.speed, agent.place]
    parts += [mark.place - agent.place for mark in landmarks_of(world)]
    parts += [other.place - agent.place for other in others]
    parts += [other.speed for other in others if other.name.startswith("agent")]
    return np.concatenate(parts)


def tag_reward(world: list[Thing], agent: Thing) -> float:
    adversaries, good = agents_of(world, "adversary"), agents_of(world, "agent")
    if agent in adversaries:
        return 10.0 * sum(touch(g, a) for g in good for a in adversaries)
    reward = -10.0 * sum(touch(agent, a) for a in adversaries)
    for x in np.abs(agent.place):
        if x >= 1.0:
            reward -= min(np.exp(2 * x - 2), 10)
        elif x >= 0.9:
            reward -= (x - 0.9) * 10
    return reward


# --- speaker and listener ---


def speaker_world(listener: np.ndarray, speed: np.ndarray, landmarks: np.ndarray) -> list[Thing]:
    world = [Thing("listener_0", 0.075, listener, speed, collide=False)]
    for i, place in enumerate(landmarks):
        world.append(Thing(f"landmark_{i}", 0.04, place, np.zeros(2), movable=False, collide=False))
    return world


def speaker_obs(goal: int) -> np.ndarray:
    color = np.full(3, 0.15)
    color[goal] = 0.65
    return color


def listener_obs(world: list[Thing], message: np.ndarray) -> np.ndarray:
    listener = world[0]
    return np.concatenate(
        [listener.speed, *(mark.place - listener.place for mark in landmarks_of(world)), message]
    )


def speaker_reward(world: list[Thing], goal: int) -> float:
    return -float(np.sum((world[0].place - landmarks_of(world)[goal].place) ** 2))
