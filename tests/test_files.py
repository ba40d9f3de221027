"""Files stay short, and a folder of tests is a room of the source."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src" / "dimorder"
MOST_LINES_OF_A_TEST_FILE, MOST_LINES_OF_A_SOURCE_FILE = 500, 400

# The C++ loader, the examples, random networks, other projects' suites and the zoo are no rooms.
NO_ROOM = {"device", "documents", "examples", "fuzz", "suite", "zoo"}

# Source files that are longer. Divide one by subject, and take it off the list; none may be added.
LONG: set[str] = set()


def longer(folder: Path, most: int) -> set[str]:
    files = (file for file in folder.rglob("*.py") if len(file.read_text().splitlines()) > most)
    return {file.relative_to(folder).as_posix() for file in files}


def test_no_test_file_is_long():
    assert longer(TESTS, MOST_LINES_OF_A_TEST_FILE) == set()


def test_no_source_file_is_long():
    found = longer(SOURCE, MOST_LINES_OF_A_SOURCE_FILE)
    assert found <= LONG, f"divide {sorted(found - LONG)} by subject"
    assert found == LONG, f"take {sorted(LONG - found)} off the list of long files"


def test_a_folder_of_tests_is_a_room():
    folders = {folder.name for folder in TESTS.iterdir() if any(folder.glob("test_*.py"))}
    rooms = {folder.name for folder in SOURCE.iterdir() if (folder / "__init__.py").exists()}
    assert folders - rooms == NO_ROOM
