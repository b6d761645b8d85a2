"""The environments that are made are those that the conformance suite looks for."""

import conformance_environments as made

from tests.conformance.sdks import ENVIRONMENTS, NODE, SDKS


def test_each_client_has_one_and_so_has_node() -> None:
    assert made.FOLDER == ENVIRONMENTS
    assert set(made.environments()) == {sdk.name for sdk in SDKS} | {NODE.relative_to(ENVIRONMENTS).parts[0]}
