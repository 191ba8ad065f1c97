"""Small pytest projects with gates over tiny embedded engines, and runs of pytest in them."""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from junitparser.xunit2 import JUnitXml, TestCase
from process_trees import wait_until

ENGINE = """\
description: a tiny engine
kind: embedded
precision: fp32
model: {synthetic: qwen2-tiny, quantization: fp8-dynamic, seed: 0}
num_threads: 1
max_batch_size: 2
ready_timeout_s: 30
"""
