"""The OpenAPI schema says what the server does: schemathesis sends generated bodies and checks
every answer.
"""

import pytest
import schemathesis
from helpers.routes import POSTS
from hypothesis import HealthCheck, given, settings
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

pytestmark = pytest.mark.slow

GETS = ("/v1/models", "/v1/models/{id}", "/info", "/health", "/ready", "/metrics")


@pytest.fixture(scope="module")
def schema(tiny_server):
    return schemathesis.openapi.from_url(f"{tiny_server.base_url}/openapi.json")


def test_all_routes_are_checked(schema):
    assert {one.ok().path for one in schema.get_all_operations()} == {*POSTS, *GETS}


@pytest.mark.parametrize("valid", [True, False])
@pytest.mark.parametrize("path", POSTS)
def test_generated_bodies(schema, path, valid):
    statuses = set()
    mode = schemathesis.GenerationMode.POSITIVE if valid else schemathesis.GenerationMode.NEGATIVE

    @given(case=schema[path]["POST"].as_strategy(generation_mode=mode))
    @settings(
        max_examples=10,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
        derandomize=True,
    )
    def check(case):
        if valid and case.body.get("model") is not None:
            case.body["model"] = "tiny"  # a schema does not know which models are served, ...
        done = case.call()
        statuses.add(done.status_code)
        # ... nor what else is wrong with a request; and schemathesis does not expect 413 for lists
        # that are too long.
        case.validate_response(
            done,
            excluded_checks=[
                positive_data_acceptance,
                *[negative_data_rejection] * (done.status_code == 413),
            ],
        )

    check()
    assert (200 in statuses) == valid, statuses


@pytest.mark.parametrize("path", GETS)
def test_get(schema, path):
    names = {"id": "tiny"} if "{id}" in path else {}
    schema[path]["GET"].Case(path_parameters=names).call_and_validate()
