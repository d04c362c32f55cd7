"""Line charts: every point is drawn where its values say, whatever the scale."""

from itertools import pairwise
from xml.etree import ElementTree

import pytest

from confide.utils.chart import Panel, panels_svg

NAME = "{http://www.w3.org/2000/svg}"


def circles(svg: str) -> list[tuple[float, float]]:
    return [
        (float(c.get("cx")), float(c.get("cy"))) for c in ElementTree.fromstring(svg).iter(f"{NAME}circle")
    ]


def words(svg: str) -> list[str]:
    return [text.text or "" for text in ElementTree.fromstring(svg).iter(f"{NAME}text")]


@pytest.mark.parametrize(
    ("points", "log"), [([(0, 0), (1, 10), (2, 20)], False), ([(1 / 16, 1), (1 / 4, 8), (1, 64)], True)]
)
def test_equal_steps_are_drawn_equally_far_apart(points, log):
    svg = panels_svg("title", [Panel("panel", "x", "y", {"line": points}, log_x=log, log_y=log)])
    places = circles(svg)
    across = [b[0] - a[0] for a, b in pairwise(places)]
    up = [b[1] - a[1] for a, b in pairwise(places)]
    assert across[0] > 0
    assert up[0] < 0
    assert across[0] == pytest.approx(across[1], abs=0.2)
    assert up[0] == pytest.approx(up[1], abs=0.2)


def test_every_panel_line_and_axis_is_named_and_escaped():
    lines = {"a < b": [(1.0, 1.0)], "c": [(2.0, 3.0)]}
    svg = panels_svg("t & u", [Panel("one", "x1", "y1", lines), Panel("two", "x2", "y2", {"d": [(1, 1)]})])
    found = words(svg)
    for name in ("t & u", "one", "two", "x1", "x2", "y1", "y2", "a < b", "c"):
        assert name in found
    assert len(circles(svg)) == 3


def test_panels_that_reach_as_far_have_one_scale():
    panels = [
        Panel(name, "x", "y", {"l": [(0, low), (1, high)]}, reach=(0, 50))
        for name, low, high in (("p", 0.0, 10.0), ("q", 10.0, 50.0))
    ]
    first, second = circles(panels_svg("t", panels))[1:3]
    assert first[1] == second[1]  # both are 10


def test_names_that_do_not_fit_stand_in_a_second_line_within_the_panel():
    lines = {
        "Estimate-and-Double": [(1, 1)],
        "random": [(1, 2)],
        "max cohort": [(1, 3)],
        "max group size": [(1, 4)],
    }
    root = ElementTree.fromstring(panels_svg("t", [Panel("p", "x", "y", lines)]))
    places = {
        text.text: (float(text.get("x")), float(text.get("y")))
        for text in root.iter(f"{NAME}text")
        if text.get("x")
    }
    assert len({places[name][1] for name in [*lines][:3]}) == 1
    below = places["max group size"]
    assert below[0] == places["Estimate-and-Double"][0]
    assert below[1] > places["random"][1] + 10
    assert all(places[name][0] + 6.6 * len(name) <= 420 for name in lines)


def test_powers_of_two_below_one_are_fractions():
    points = [(2.0**-k, 1.0) for k in range(11)]
    assert "1/1,024" in words(panels_svg("t", [Panel("p", "x", "y", {"l": points}, log_x=True)]))


def test_a_panel_without_points_is_a_fault():
    with pytest.raises(ValueError, match="nothing to draw"):
        Panel("p", "x", "y", {"l": []})
