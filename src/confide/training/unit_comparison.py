"""Compare the gradients of all units: which are near each other, and which are kept (Chua et al. 2024, Algorithm 3)."""

import errno
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import numpy as np
import torch

from confide.clipping import NonFiniteGradient
from confide.privacy.mechanisms.values import Aggregation
from confide.privacy.sampling import Draw, StopTraining
from confide.training.gradient_sum import GradientSum, Vectors
from confide.training.packing import Pack, alone
from confide.utils import memory
from confide.utils.errors import InputError

SHARE = 0.5
"""Share of the free memory that users' gradients may take; if they need more, they go to a file."""

PAIR = 28
"""Bytes that `Gradients.within` needs for each pair of users."""

COLUMNS = 1 << 16  # coordinates that are processed at a time


class Gradients:
    """One float32 vector for each user: in memory if they fit in half of the free memory, else in a file.

    The file has no name from the start, so nothing of it is left, whatever happens to the process.

    Args:
        users, width: shape of the matrix.
        folder: where a file goes; None: the system's folder for temporary files.

    Raises:
        InputError: neither memory nor disk suffices.
    """

    def __init__(self, users: int, width: int, folder: Path | None = None):
        self.users, self.width = users, width
        size, room = 4 * users * width, memory.free(torch.device("cpu"))
        self._file: IO[bytes] | None = None
        if room is None or size <= SHARE * room:
            self._check_pairs(None if room is None else room - size)
            self._matrix = np.zeros((users, width), np.float32)
            return
        place = Path(tempfile.gettempdir()) if folder is None else folder
        free = shutil.disk_usage(place).free
        if size > free:
            raise self._too_large(place, free)
        self._check_pairs(room)
        self._place, self._file = place, _nameless(place, size)
        self._matrix = np.memmap(self._file, np.float32, "r", shape=(users, width))

    def _check_pairs(self, room: int | None) -> None:
        needed = PAIR * self.users**2
        if room is not None and needed > room:
            raise InputError(
                f"privacy.mechanism: to compare {self.users:,} units each with each takes {needed / 1e9:.1f} GB, and "
                f"{room / 1e9:.1f} GB are free: concentration is for fewer units, uls for any number"
            )

    def _too_large(self, place: Path, free: int) -> InputError:
        return InputError(
            f"adapter.kind: a gradient for each of {self.users:,} units takes {4e-9 * self.users * self.width:.1f} "
            f"GB, and {place} has {free / 1e9:.1f} GB: train fewer weights (lora), or a smaller model"
        )

    def put(self, user: int, vector: np.ndarray) -> None:
        """Store a user's gradient, float32[width]."""
        if self._file is None:
            self._matrix[user] = vector
            return
        try:  # not through the memory map: a full disk would kill the process there
            written, data = 0, vector.astype(np.float32).tobytes()
            while written < len(data):
                place = 4 * user * self.width + written
                written += os.pwrite(self._file.fileno(), data[written:], place)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise self._too_large(self._place, shutil.disk_usage(self._place).free) from error

    def _columns(self) -> Iterator[slice]:
        for first in range(0, self.width, COLUMNS):
            yield slice(first, min(first + COLUMNS, self.width))

    def mean(self, kept: np.ndarray) -> np.ndarray:
        """Compute the mean over some users, added up in float64: float32[width]; zero if there are none."""
        result = np.zeros(self.width, np.float32)
        if len(kept):
            for columns in self._columns():
                result[columns] = self._matrix[kept, columns].mean(0, dtype=np.float64)
        return result

    def within(self, radii: Sequence[float]) -> np.ndarray:
        """Count the users within each distance of each user, itself included: int64[radii, users].

        Whether two users are within a distance is a function of their two vectors alone, whatever other users
        there are. The product of all vectors with all decides the pairs that rounding cannot affect; for the
        others, the distance of the two is computed. Needs `PAIR` bytes for each pair of users.
        """
        squares, slack = self._squares()
        counts = np.empty((len(radii), self.users), np.int64)
        for place, radius in enumerate(radii):
            near = np.triu(squares <= radius**2, 1)
            unsure = np.triu(np.abs(squares - radius**2) <= slack[:, None] + slack, 1)
            for i, j in np.argwhere(unsure):
                near[i, j] = self._square(i, j) <= radius**2
            counts[place] = 1 + near.sum(0) + near.sum(1)
        return counts

    def distances(self) -> np.ndarray:
        """Compute the distance of each pair: float64[users, users]."""
        squares, _ = self._squares()
        np.fill_diagonal(squares, 0)
        distances: np.ndarray = np.sqrt(np.maximum(squares, 0))
        return distances

    def products(self, vector: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Compute inner products in float32, added up in float64.

        Args:
            vector: float32[width].

        Returns:
            float64[users, users] of the gradients with each other, and float64[users] with the vector.
        """
        each = torch.zeros((self.users, self.users), dtype=torch.float64)
        along = np.zeros(self.users)
        for columns in self._columns():
            some = np.ascontiguousarray(self._matrix[:, columns])
            own = torch.from_numpy(some)
            each += own @ own.T
            along += some @ vector[columns]
        return each.numpy(), along

    def norms(self) -> np.ndarray:
        """Compute the norm of each user's gradient: float64[users]."""
        squares = np.zeros(self.users)
        for columns in self._columns():
            squares += (self._matrix[:, columns].astype(np.float64) ** 2).sum(1)
        return np.sqrt(squares)

    def _squares(self) -> tuple[np.ndarray, np.ndarray]:
        """Compute squared distances |a|^2 + |b|^2 - 2ab, in float64 about the mean, and each user's error part."""
        products = torch.zeros((self.users, self.users), dtype=torch.float64)
        for columns in self._columns():
            some = torch.from_numpy(self._matrix[:, columns].astype(np.float64))
            some -= some.mean(0)
            products.addmm_(some, some.T)
        norms = products.diagonal().clone()
        squares = products.mul_(-2).add_(norms[:, None]).add_(norms).numpy()
        # The error of a sum of n products is up to n 2^-53 of their sizes (Higham 2002, 3.1). It arises in both
        # norms, in the product, and in the direct distance. Twice as much is allowed, which covers the
        # centring.
        return squares, 8 * (self.width + 8) * 2.0**-53 * norms.numpy()

    def _square(self, i: int, j: int) -> float:
        gaps = (
            self._matrix[i, columns].astype(np.float64) - self._matrix[j, columns]
            for columns in self._columns()
        )
        return sum(float(gap @ gap) for gap in gaps)


def _nameless(folder: Path, size: int) -> IO[bytes]:
    file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  # the caller keeps it open
    file.truncate(size)
    return file


class UnitComparison:
    """Mean of the gradients of the units that an aggregation keeps after it has compared all of them.

    Formal guarantee: `take` is the mean over the kept units of g_u, to which the step adds N(0, (s' tau / N)^2
    I), and if the aggregation's test fails the run ends: `accounting.concentration.Filtered` claims exactly that.
    A unit's gradient is made by passes over that unit's rows alone, and is zero if it is not finite.

    Args:
        gradients: computes the gradient of a unit.
        parameters: the trainable parameters, by name.
        combine: has radii, and decides which units are kept.
        folder: where the gradients of all units go if memory does not suffice.
    """

    def __init__(
        self,
        gradients: GradientSum,
        parameters: Mapping[str, torch.Tensor],
        aggregation: Aggregation,
        folder: Path | None = None,
    ):
        refuse_ranks(gradients.ranks.several)
        self.gradients, self.parameters, self.aggregation = gradients, parameters, aggregation
        width = sum(parameter.numel() for parameter in parameters.values())
        self.of_units = Gradients(aggregation.compared_units, width, folder)
        self._survivors = np.zeros(0, np.int64)

    def add(self, draw: Draw, step: int) -> list[torch.Tensor] | StopTraining:
        """Compare the units of the draw. Return their norms, or why the run ends."""
        norms = self.collect(draw, step)
        counts = self.of_units.within(self.aggregation.radii)
        kept = self.aggregation.keep(counts, self.gradients.key, self.gradients.phase, step)
        if isinstance(kept, StopTraining):
            return kept
        self._survivors = kept
        return norms

    def collect(self, draw: Draw, step: int) -> list[torch.Tensor]:
        """Write every unit's gradient into `of_units`. Return the norms."""
        if draw.groups != self.of_units.users:
            raise ValueError(f"{draw.groups} units were drawn of {self.of_units.users}")
        own = self.gradients

        def put(pack: Pack, norms: torch.Tensor) -> torch.Tensor:
            return self._put(int(draw.group[pack.rows[0]]), norms)

        return own.add_packs(draw, step, lambda draw: alone(draw, own.micro_tokens, own.task.packs_rows), put)

    def _put(self, unit: int, norms: torch.Tensor) -> torch.Tensor:
        try:
            sums = self.gradients.take()
        except (
            NonFiniteGradient
        ):  # an error message would reveal something about this unit that no noise covers
            sums = {name: torch.zeros_like(parameter) for name, parameter in self.parameters.items()}
            norms = torch.full_like(norms, math.inf)
        vector = torch.cat([sums[name].detach().flatten().cpu() for name in self.parameters])
        self.of_units.put(unit, vector.numpy())
        return norms

    def take(self) -> Vectors:
        """Return the mean over the kept units."""
        mean, place, total = torch.from_numpy(self.of_units.mean(self._survivors)), 0, {}
        for name, parameter in self.parameters.items():
            part = mean[place : place + parameter.numel()]
            total[name] = part.view(parameter.shape).to(parameter.device, copy=True)
            place += parameter.numel()
        return total


def refuse_ranks(several: bool) -> None:
    """Refuse several ranks: the filter compares all users with each other, in one process."""
    if several:
        raise InputError(
            "train.distributed: the concentration filter compares all units' gradients in one process: start confide "
            "without torchrun"
        )
