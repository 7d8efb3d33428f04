"""docs/reliability.md promises what was attacked, and nothing else."""

from tests.attack.reliability import PAGE, counted, stated


def test_the_page_states_the_counts_of_the_last_whole_attack():
    assert stated(PAGE.read_text()) == counted()  # if not: make attack


def test_every_count_is_of_something_that_always_held():
    assert all(count.split(" of ")[0] == count.split(" of ")[1] != "0" for count in counted().values())
