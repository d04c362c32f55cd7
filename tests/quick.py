"""Linear layers by oneDNN wherever there is one, on any processor and at any width."""

import copy

import pytest
from torch import nn

from confide.models.fast import onednn as products
from confide.models.fast.activations import install_fast_layers

needs_onednn = pytest.mark.skipif(not products.exist(), reason="torch has no oneDNN here")


@pytest.fixture
def everywhere(monkeypatch):
    """Counts the products that oneDNN takes."""
    seen = []

    def counted(*factors):
        seen.append(factors)
        return taken(*factors)

    taken = products.product
    monkeypatch.setattr(products, "product", counted)
    monkeypatch.setattr(products, "are_faster", lambda: True)
    monkeypatch.setattr(products, "_NARROW", 1)
    monkeypatch.setattr(products, "_FEW", 1)
    return seen


def quick(model: nn.Module) -> nn.Module:
    """A copy that computes so."""
    model = copy.deepcopy(model)
    install_fast_layers(model)
    return model
