"""Pictures of environments: where things are drawn, and how near gymnasium's pictures they are."""

import dataclasses
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.envs import MadeEnv, make
from jaxrl.envs.adapters.gymnax import CELL_PIXELS
from jaxrl.envs.classic.raster import Canvas

YELLOW, GREY, CYAN, BLACK = (204, 204, 0), (128, 128, 128), (0, 204, 204), (0, 0, 0)


def made_of(env_id: str, params: dict[str, Any] | None = None) -> MadeEnv:
    made = make(env_id, params)
    assert isinstance(made, MadeEnv)
    return made


def drawn(env_id: str, physics: list[float], **params: float) -> np.ndarray:
    made = made_of(env_id, params)
    first, _ = made.env.reset(jax.random.key(0), made.params)
    inner = dataclasses.replace(first.inner, physics=jnp.array(physics, jnp.float32))
    picture = made.env.render(dataclasses.replace(first, inner=inner), made.params)
    assert picture.dtype == np.uint8
    return picture


def centres(picture: np.ndarray, colour: tuple[int, int, int]) -> np.ndarray:
    """x and y (up) of the centres of all pixels of exactly this colour."""
    rows, columns = np.nonzero(np.all(picture == np.array(colour), axis=-1))
    return np.stack([columns + 0.5, picture.shape[0] - rows - 0.5], axis=-1)


# --- Acrobot ---


@pytest.mark.parametrize("angles", [(0.0, 0.0), (0.7, 0.4), (-2.0, 1.5), (np.pi, 0.0)])
def test_acrobots_tip_is_where_its_angles_put_it(angles: tuple[float, float]) -> None:
    picture = drawn("Acrobot-v1", [*angles, 0.0, 0.0])
    assert picture.shape == (500, 500, 3)
    scale = 250 / 2.2
    elbow = 250 + scale * np.array([np.sin(angles[0]), -np.cos(angles[0])])
    tip = elbow + scale * np.array([np.sin(sum(angles)), -np.cos(sum(angles))])
    links = centres(picture, CYAN)
    distance = np.linalg.norm(links - tip, axis=-1)
    assert distance.min() < 0.1 * scale + 2  # the end is flat, a tenth to either side
    reach = np.linalg.norm(links - 250, axis=-1).max()
    wanted = max(np.hypot(np.linalg.norm(tip - 250), 0.1 * scale), 1.005 * scale)
    assert abs(reach - wanted) < 0.12 * scale
    joints = centres(picture, YELLOW)
    near_elbow = joints[np.linalg.norm(joints - elbow, axis=-1) < 0.1 * scale]
    np.testing.assert_allclose(near_elbow.mean(axis=0), elbow, atol=1.5)


def test_acrobots_height_to_reach_is_a_line() -> None:
    for target in (1.0, 0.5):
        line = centres(drawn("Acrobot-v1", [0.0] * 4, target_height=target), (0, 0, 0))
        picture = drawn("Acrobot-v1", [0.0] * 4, target_height=target)
        dark = np.flatnonzero(picture[:, 10].mean(axis=-1) < 250)
        assert len(dark) <= 2
        assert abs((500 - dark.mean() - 0.5) - (250 + target * 250 / 2.2)) < 1
        assert len(line) in (0, 500)


# --- MountainCar ---


@pytest.mark.parametrize("env_id", ["MountainCar-v0", "MountainCarContinuous-v0"])
@pytest.mark.parametrize("position", [-1.1, -0.5, 0.3])
def test_the_car_is_on_its_track(env_id: str, position: float) -> None:
    picture = drawn(env_id, [position, 0.0])
    assert picture.shape == (400, 600, 3)
    scale = 600 / 1.8
    axle = np.array([(position + 1.2) * scale, (np.sin(3 * position) * 0.45 + 0.55) * scale + 10])
    grey = centres(picture, GREY)  # some of which are half-covered pixels of lines
    wheels = grey[np.linalg.norm(grey - axle, axis=-1) < 20]
    assert len(wheels) > 300
    np.testing.assert_allclose(wheels.mean(axis=0), axle, atol=1.0)
    along = np.linalg.eigh(np.cov(wheels.T))[1][:, -1]  # two discs side by side
    slope = np.cos(3 * position)
    assert abs(along @ np.array([np.cos(slope), np.sin(slope)])) > 0.995


@pytest.mark.parametrize(
    ("env_id", "goal"), [("MountainCar-v0", 0.5), ("MountainCarContinuous-v0", 0.45)]
)
def test_the_flag_is_at_the_goal(env_id: str, goal: float) -> None:
    for wanted, params in ((goal, {}), (0.2, {"goal_position": 0.2})):
        flag = centres(drawn(env_id, [-0.5, 0.0], **params), YELLOW)
        foot = (np.sin(3 * wanted) * 0.45 + 0.55) * 600 / 1.8
        assert abs(flag[:, 0].min() - (wanted + 1.2) * 600 / 1.8) < 3
        assert abs(flag[:, 1].mean() - (foot + 45)) < 2


def test_the_track_is_a_line_from_edge_to_edge() -> None:
    picture = drawn("MountainCar-v0", [-0.5, 0.0])
    for column in (3, 200, 597):
        dark = 255.0 - picture[:, column, 0].astype(float)
        y = 400 - np.sum(dark * (np.arange(400) + 0.5)) / dark.sum()
        position = (column + 0.5) * 1.8 / 600 - 1.2
        if column != 200:  # where the car is not
            assert abs(y - (np.sin(3 * position) * 0.45 + 0.55) * 600 / 1.8) < 1


# --- beside gymnasium's ---


STATES = {
    "CartPole-v1": [0.5, 0.0, 0.15, 0.0],
    "Acrobot-v1": [0.6, -1.1, 0.0, 0.0],
    "MountainCar-v0": [-0.8, 0.0],
    "MountainCarContinuous-v0": [0.2, 0.0],
}


@pytest.mark.parametrize("env_id", STATES)
def test_pictures_are_gymnasiums_but_for_edges(env_id: str) -> None:
    theirs: Any = gymnasium.make(env_id, render_mode="rgb_array").unwrapped
    theirs.reset(seed=0)
    theirs.state = np.array(STATES[env_id])
    wanted = theirs.render()
    theirs.close()
    got = drawn(env_id, STATES[env_id])
    assert got.shape == wanted.shape
    height, width = wanted.shape[0] // 10, wanted.shape[1] // 10
    blocks = [p.reshape(height, 10, width, 10, 3).mean(axis=(1, 3)) for p in (got, wanted)]
    assert np.abs(blocks[0] - blocks[1]).max() < 40
    assert np.abs(blocks[0] - blocks[1]).mean() < 1
    assert np.abs(blocks[0] - 255).max() > 200


# --- shapes ---


def test_shapes_past_the_edge_are_cut_off() -> None:
    canvas = Canvas(height=20, width=30)
    canvas.fill_circle(np.array([0.0, 0.0]), 5.0, BLACK)
    canvas.fill_circle(np.array([100.0, -50.0]), 5.0, YELLOW)
    canvas.fill_polygon(np.array([[25.0, 15.0], [60, 15], [60, 60], [25, 60]]), GREY)
    picture = canvas.to_uint8()
    assert tuple(picture[-1, 0]) == BLACK
    assert len(centres(picture, YELLOW)) == 0
    assert len(centres(picture, GREY)) == 5 * 5
    assert len(centres(picture, BLACK)) == pytest.approx(np.pi * 25 / 4, abs=5)


# --- gymnax ---


@pytest.mark.parametrize("name", ["Breakout", "SpaceInvaders"])
def test_grid_games_are_drawn_cell_by_cell(name: str) -> None:
    made = made_of(f"gymnax:{name}-MinAtar")
    state, obs = made.env.reset(jax.random.key(0), made.params)
    picture = made.env.render(state, made.params)
    assert picture.dtype == np.uint8
    assert picture.shape == (10 * CELL_PIXELS, 10 * CELL_PIXELS, 3)
    cells = picture[::CELL_PIXELS, ::CELL_PIXELS]
    np.testing.assert_array_equal(picture[CELL_PIXELS - 1 :: CELL_PIXELS, ::CELL_PIXELS], cells)
    observed = np.asarray(obs) > 0
    np.testing.assert_array_equal(cells.any(axis=-1), observed.any(axis=-1))
    top = np.where(observed.any(axis=-1), observed.shape[-1] - observed[..., ::-1].argmax(-1), 0)
    colours = {number: {tuple(c) for c in cells[top == number]} for number in np.unique(top)}
    assert all(len(found) == 1 for found in colours.values())
    assert len(set.union(*colours.values())) == len(colours)


def test_what_has_no_picture_says_so() -> None:
    made = made_of("gymnax:Catch-bsuite")
    state, _ = made.env.reset(jax.random.key(0), made.params)
    with pytest.raises(NotImplementedError, match="gymnax:Catch-bsuite cannot be rendered"):
        made.env.render(state, made.params)
