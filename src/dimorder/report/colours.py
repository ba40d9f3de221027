"""Define the colours of orders and of conversions, for pages, Graphviz and Model Explorer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Colour:
    """A colour as `#rrggbb`, on a light page and on a dark one."""

    light: str
    dark: str

    @property
    def pale(self) -> str:
        """The light colour as the ground of black text.

        >>> Colour("#000000", "#ffffff").pale
        '#c7c7c7'
        """
        parts = (int(self.light[at : at + 2], 16) for at in (1, 3, 5))
        return "#" + "".join(f"{255 - round((255 - part) * 0.22):02x}" for part in parts)


COLOURS: Mapping[str, Colour] = {
    "row-major": Colour("#9aa5b4", "#6f7a89"),
    "channels-last": Colour("#2f7fd1", "#4b9bea"),
    "permuted": Colour("#8b5cc9", "#a883e0"),
    "cut": Colour("#1f9d78", "#34b890"),
    "conversion": Colour("#c2410c", "#fb923c"),
}


def variables() -> str:
    """Return the colours as variables of CSS, such as `--channels-last`."""
    light, dark = (
        "".join(f"--{name}:{getattr(colour, ground)};" for name, colour in COLOURS.items())
        for ground in ("light", "dark")
    )
    return f":root{{{light}}}\n@media (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"
