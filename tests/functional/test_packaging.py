# SPDX-License-Identifier: Apache-2.0
"""The files that 'pip install .' installs from a fresh clone."""

import pathlib
import subprocess
import sys
import zipfile

ROOT = pathlib.Path(__file__).parents[2]


def test_the_wheel_of_a_fresh_clone_holds_the_whole_package(tmp_path):
    """The build prints no warning if the package list is wrong."""
    clone, wheels = tmp_path / 'clone', tmp_path / 'wheels'
    subprocess.run(['git', 'clone', '--quiet', ROOT, clone], check=True)
    tracked = subprocess.run(
        ['git', '-C', clone, 'ls-files', 'distperiodic'],
        capture_output=True, text=True, check=True).stdout.split()

    subprocess.run(
        [sys.executable, '-m', 'pip', 'wheel', '--quiet', '--no-deps',
         '--wheel-dir', wheels, clone], check=True)
    [wheel] = wheels.iterdir()

    assert tracked
    assert set(tracked) - set(zipfile.ZipFile(wheel).namelist()) == set()
