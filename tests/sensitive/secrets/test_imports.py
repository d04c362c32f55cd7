"""The import graph misses nothing: many ways to import one module, each alone in a code base."""

import json

import pytest

from confide.data.readers.code import source_files
from confide.sensitive.secrets.imports import BY_PATTERN, COMPUTED, UNREAD, ImportGraph
from tests.data.readers.test_code import write

ACME = {
    "src/acme/__init__.py": "",
    "src/acme/billing/__init__.py": "",
    "src/acme/billing/charge.py": "def total(): ...\n",
    "src/acme/tools/__init__.py": "",
    "src/acme/tools/text.py": "",
    "src/other.py": "",
    "pyproject.toml": "",
}
CHARGE = "src/acme/billing/charge.py"


def imported(folder, files, path):
    graph = ImportGraph.of(folder, source_files(write(folder, files)))
    return graph.imports.get(path, frozenset()), graph


FORMS = [
    "import acme.billing.charge",
    "import os, acme.billing.charge as c, sys",
    "import acme . billing . charge",
    "import acme.billing \\\n    .charge",
    "from acme.billing.charge import total",
    "from acme.billing.charge import *",
    "from acme.billing import *",
    "from acme.billing import (\n    nothing,  # (why)\n    charge as c,\n)",
    "from acme import billing\nbilling.charge.total()",
    "import acme\nacme.billing.charge.total()",
    "import acme as a\nx = a.billing.charge",
    "from ..billing import charge",
    "from ..billing.charge import total",
    "from .. import billing\ndef f():\n    return billing.charge.total",
    "if True:\n    try:\n        from acme.billing import charge\n    except ImportError:\n        charge = None",
    "def f():\n    class A:\n        async def g(self):\n            import acme.billing.charge",
    "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from acme.billing.charge import total",
    "import importlib\nm = importlib.import_module('acme.billing.charge')",
    "from importlib import import_module as im\nm = im('.charge', 'acme.billing')",
    "from importlib import import_module\nm = import_module('..billing.charge', package=__package__)",
    "import importlib\nm = importlib.import_module(f'acme.billing.{name}')",
    "import importlib\nm = importlib.import_module('acme.billing.' + name)",
    "import importlib\nm = importlib.import_module('acme.' + 'billing.charge')",
    "import importlib\nm = importlib.import_module('acme.billing.%s' % name)",
    "m = __import__('acme.billing.charge')",
    "name = 'acme.billing.charge'\nm = load(name)",
    "APPS = ['acme.billing.charge']",
    "from unittest import mock\n@mock.patch('acme.billing.charge.total')\ndef test(): ...",
    "target = 'acme.billing.charge:total'",
    "import sys\nm = sys.modules['acme.billing.charge']",
    "exec('from acme.billing import charge')",
    "import subprocess\nsubprocess.run('python -m acme.billing.charge --all', shell=True)",
    "import runpy\nrunpy.run_path('src/acme/billing/charge.py')",
    "def f(x: 'acme.billing.charge.Total'): ...",
    "import acme.billing.charge; print 'Python 2'",
    "print 'Python 2'\nfrom acme.billing import (tax,  # (why)\n  charge)",
    "print 'Python 2'\nfrom ..billing import charge",
    "print 'Python 2'\nfrom..billing.charge import*",
    "print 'Python 2'\nimport acme\nacme.billing.charge.total()",
    "{% if x %}\nfrom acme.billing.charge import total\n{% endif %}",
    "\ufefffrom acme.billing import charge",
    "from acme.billing import charge\r\nx = 1\r\n",
    "from acme.billing.charge import total\nx = '\x00'",
    "match = 1\nmatch x:\n    case 1: from acme.billing import charge",
    "import src.acme.billing.charge",
]


@pytest.mark.parametrize(
    "text", ["words = 'is taken from import *'", "words = 'from import lists'", "program = \"import os, ''\""]
)
def test_words_that_look_like_an_import_name_nothing(tmp_path, text):
    found, _ = imported(tmp_path, ACME | {"src/acme/words.py": text}, "src/acme/words.py")
    assert found == frozenset()


@pytest.mark.parametrize("form", FORMS)
def test_ways_to_import_a_module(tmp_path, form):
    path = "src/acme/tools/user.py"
    found, _ = imported(tmp_path, ACME | {path: form}, path)
    assert CHARGE in found
    assert not found & {"src/other.py", "src/acme/tools/text.py"}


COMPUTED_FORMS = [
    "f'acme.{name}'",
    "'acme.' + name",
    "'acme' + name",
    "'acme.bil' + name",
    "'acme.{}.x'.format(y)",
]


@pytest.mark.parametrize("name", COMPUTED_FORMS)
def test_a_name_that_is_computed_means_all_it_may(tmp_path, name):
    found, graph = imported(
        tmp_path, ACME | {"a.py": f"import importlib\nimportlib.import_module({name})"}, "a.py"
    )
    assert {path for path in ACME if path.startswith("src/acme/")} <= found | {"src/acme/__init__.py"}
    assert "src/other.py" not in found
    assert graph.counts[COMPUTED] == 0


ELSEWHERE = [  # path of the importing file, its text, other files
    ("run.py", "import acme.billing.charge", {}),
    ("tests/test_a.py", "from acme.billing import charge", {}),
    ("stubs/a.pyi", "from acme.billing.charge import total", {}),
    ("fast.pyx", "from acme.billing cimport charge", {}),
    ("bin/tool", "#!/usr/bin/env python3\nimport acme.billing.charge", {}),
    ("src/acme/billing/__main__.py", "from . import charge", {}),
    ("src/acme/billing/tax.py", "import charge", {}),
    ("src/acme/billing/deep/er.py", "import charge", {}),
    ("src/acme/__init__.py", "from .billing import charge", {}),
    ("scripts/a.py", "import sys\nsys.path.insert(0, '../src/acme/billing')\nimport charge", {}),
    ("scripts/deep/a.py", "import charge", {"scripts/conftest.py": "import sys\nsys.path += ['src']"}),
    ("scripts/a.py", "import charge", {"scripts/_path.py": "import sys\nsys.path += ['src/acme/billing']"}),
    ("latin.py", b"# caf\xe9\nimport acme.billing.charge", {}),
    ("latin.py", b"# -*- coding: latin-1 -*-\nx = 'caf\xe9'\nimport acme.billing.charge", {}),
]


@pytest.mark.parametrize(("path", "text", "more"), ELSEWHERE)
def test_wherever_the_importing_file_lies(tmp_path, path, text, more):
    found, _ = imported(tmp_path, ACME | more | {path: text}, path)
    assert CHARGE in found


def test_notebooks(tmp_path):
    cells = [
        {"cell_type": "markdown", "source": ["import other"]},
        {"cell_type": "code", "source": ["%matplotlib inline\n", "from acme.billing import charge\n"]},
    ]
    found, graph = imported(tmp_path, ACME | {"a.ipynb": json.dumps({"cells": cells})}, "a.ipynb")
    assert CHARGE in found
    assert "src/other.py" not in found
    assert graph.counts[BY_PATTERN] == 0


def test_namespace_packages(tmp_path):
    tree = {"libs/a/acme/billing/charge.py": "", "libs/b/acme/tools/text.py": ""}
    for form in ("from acme.billing import charge", "import acme.billing", "import acme.billing.charge as c"):
        found, _ = imported(tmp_path, tree | {"app/run.py": form}, "app/run.py")
        assert found == {"libs/a/acme/billing/charge.py"}


def test_the_packages_above_are_imported_too(tmp_path):
    found, _ = imported(tmp_path, ACME | {"run.py": "import acme.billing.charge"}, "run.py")
    assert found == {"src/acme/__init__.py", "src/acme/billing/__init__.py", CHARGE}


@pytest.mark.parametrize(
    ("path", "form"),
    [
        (
            "src/acme/tools/user.py",
            "import logging, requests",
        ),  # of the standard library, and of another package
        ("src/acme/tools/user.py", "from requests import get"),
        ("src/acme/tools/user.py", "import logging.handlers\nlogging.getLogger('requests')"),
        ("src/acme/tools/user.py", "import billing_tools\nx = 'the billing, charged'"),
        ("src/acme/tools/user.py", "from . import charge"),
        ("src/acme/tools/user.py", "from ....... import charge"),
        ("run.py", "import charge"),
    ],
)
def test_other_modules_of_the_same_name_are_not_meant(tmp_path, path, form):
    same = {"src/acme/billing/logging.py": "", "src/acme/billing/requests.py": ""}
    found, _ = imported(tmp_path, ACME | same | {path: form}, path)
    assert not any("billing" in place for place in found)


@pytest.mark.parametrize(
    ("place", "path", "there"),
    [
        (
            "svc/logging.py",
            "app/run.py",
            False,
        ),  # of the standard library, unless Python would look here first
        ("svc/logging.py", "svc/run.py", True),
        ("src/logging.py", "app/run.py", True),
        ("svc/log.py", "app/run.py", True),
    ],
)
def test_modules_outside_packages(tmp_path, place, path, there):
    name = place.rsplit("/", 1)[1].removesuffix(".py")
    found, _ = imported(tmp_path, {place: "", path: f"import {name}"}, path)
    assert (place in found) == there


def test_what_cannot_be_known_is_counted(tmp_path):
    more = {
        "a.py": "from importlib import import_module\nimport_module(name)",
        "b.py": "print 'x'",
        "c.rb": "require './a'",
        "d.md": "import acme",
    }
    _, graph = imported(tmp_path, ACME | more, "a.py")
    assert dict(graph.counts) == {BY_PATTERN: 1, COMPUTED: 1, UNREAD: 1}


@pytest.mark.parametrize(
    ("call", "computed"),
    [
        ("import_module(name)", 1),
        ("__import__(name)", 1),
        ("import_module(f'{name}.x')", 1),
        ("import_module('.x', name)", 1),
        ("import_module('.' + name, __package__)", 0),
        ("import_module('.x', 'acme')", 0),
        ("import_module('acme.' + name)", 0),
        ("import_csv(name)", 0),
    ],
)
def test_which_computed_names_are_unknown(tmp_path, call, computed):
    _, graph = imported(tmp_path, {"a.py": f"from importlib import import_module\n{call}"}, "a.py")
    assert graph.counts[COMPUTED] == computed


def test_importers_go_through_cycles_and_chains(tmp_path):
    chain = {
        "a.py": "import b",
        "b.py": "import c",
        "c.py": "import b\nimport d",
        "d.py": "",
        "e.py": "import os",
    }
    _, graph = imported(tmp_path, chain, "a.py")
    assert graph.importers(["d.py"]) == {"a.py", "b.py", "c.py", "d.py"}
    assert graph.importers(["a.py"]) == {"a.py"}
    assert graph.importers(["e.py"]) == {"e.py"}


WEB = {
    "web/src/billing/charge.ts": "",
    "web/src/billing/index.ts": "",
    "web/src/other.ts": "",
    "packages/pay/package.json": '{"name": "@acme/pay", "main": "lib/go.js"}',
    "packages/pay/lib/go.js": "",
    "web/tsconfig.json": '{"compilerOptions": {"paths": {"$bill/*": ["./src/billing/*"]}}}',
}
WEB_FORMS = [
    ("import {total} from '../billing/charge'", "charge"),
    ('import type {\n  A,\n} from "../billing/charge.js";', "charge"),
    ("import '../billing/charge.ts'", "charge"),
    ("import * as b from '../billing'", "index"),
    ("export * from '../billing/index'", "index"),
    ("const c = require('../billing/charge')", "charge"),
    ('import c = require("../billing/charge")', "charge"),
    ("const c = await import(/* webpackChunkName: 'c' */ '../billing/charge')", "charge"),
    ("const c = import(`../billing/${name}`)", "charge"),
    ("const c = import.meta.glob('../billing/*.ts')", "charge"),
    ("jest.mock('../billing/charge')", "charge"),
    ("new Worker(new URL('../billing/charge.ts', import.meta.url))", "charge"),
    ("/// <reference path='../billing/charge.ts' />", "charge"),
    ("// don't\nimport x from '../billing/charge'", "charge"),
    ("/* don't */ import x from '../billing/charge'", "charge"),
    ("import x from '@/billing/charge'", "charge"),
    ("import x from '~/billing'", "index"),
    ("import x from 'src/billing/charge'", "charge"),
    ("import x from '$bill/charge'", "charge"),
    ("import pay from '@acme/pay'", "go"),
    ("import pay from '@acme/pay/lib/go.js?raw'", "go"),
]


@pytest.mark.parametrize(("form", "target"), WEB_FORMS)
def test_javascript_and_typescript(tmp_path, form, target):
    found, _ = imported(tmp_path, WEB | {"web/src/views/user.tsx": form}, "web/src/views/user.tsx")
    assert any(path.rsplit("/", 1)[1].startswith(target + ".") for path in found)
    assert "web/src/other.ts" not in found


def test_vue(tmp_path):
    text = "<script setup>\nimport x from '../billing/charge'\n</script>"
    found, _ = imported(tmp_path, WEB | {"web/src/views/user.vue": text}, "web/src/views/user.vue")
    assert found == {"web/src/billing/charge.ts"}


OTHERS = [
    ("lib/a.h", "app/b.c", '#include "a.h"', True),
    ("lib/inc/a.hpp", "app/b.cc", "#  include <inc/a.hpp>", True),
    ("lib/inc/a.h", "app/b.m", '#import "../inc/a.h"', True),
    ("lib/a.h", "app/b.c", '#include "aa.h"', False),
    ("s/com/acme/Bill.java", "t/com/other/A.java", "package com.other;\nimport com.acme.Bill;", True),
    (
        "s/com/acme/Bill.java",
        "t/com/other/A.java",
        "package com.other;\nimport static com.acme.Bill.*;",
        True,
    ),
    ("s/com/acme/Bill.java", "t/com/other/A.kt", "package com.other\nimport com.acme.*", True),
    ("s/com/acme/Bill.java", "t/com/other/A.java", "package com.other;\nvar b = new com.acme.Bill();", True),
    ("s/com/acme/Bill.java", "t/com/acme/A.java", "package com.acme;\nvar b = new Bill();", True),
    ("s/com/acme/Bill.java", "t/com/other/A.java", "package com.other;\nimport com.acme2.Bill;", False),
    ("pay/bill.go", "cmd/main.go", 'package main\nimport (\n  b "x.org/acme/pay"\n)', True),
    ("pay/bill.go", "pay/tax.go", "package pay", True),
    ("src/x.org/old/pay/bill.go", "cmd/main.go", 'package main\nimport "x.org/old/pay"', True),
    ("pay/bill.go", "cmd/main.go", 'package main\nimport "fmt"', False),
]


@pytest.mark.parametrize(("target", "path", "text", "there"), OTHERS)
def test_other_languages(tmp_path, target, path, text, there):
    content = {"java": "package com.acme;\nclass Bill {}", "go": "package pay"}.get(
        target.rsplit(".", 1)[1], ""
    )
    files = {target: content, path: text, "go.mod": "module x.org/acme\n"}
    found, _ = imported(tmp_path, files, path)
    assert (target in found) == there
