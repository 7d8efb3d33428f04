"""The wheels work where there is no checkout: in a new environment, from another folder."""

import json

import uncollapse as uc

IMPORTED = """
import torch, uncollapse as uc

q = torch.randn(1, 2, 5, 4)
out, state = uc.hopfield_attention(q, q, q)
out, state = uc.hopfield_attention(q, q, q, state)
print(uc.__file__)
print(tuple(out.shape), tuple(state.scores().shape))
"""


def printed(done):
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_library_works_without_the_checkout(library, environment_with):
    environment = environment_with(library.wheel)
    file, shapes = printed(environment.run("python", "-c", IMPORTED)).splitlines()
    assert file.startswith(str(environment.root))
    assert shapes == "(1, 2, 5, 4) (1, 2, 5, 5)"
    assert printed(environment.run("uncollapse", "--version")) == f"uncollapse {uc.__version__}\n"
    assert "diagnose" in printed(environment.run("uncollapse", "--help"))
    assert "name: quickstart" in printed(environment.run("uncollapse", "train", "quickstart", "--print_config"))

    refused = environment.run("uncollapse", "reproduce")
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert "uncollapse-studies" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_the_studies_judge_trained_networks_without_the_checkout(library, studies, environment_with):
    environment = environment_with(library.wheel, studies.wheel)
    assert "reproduce" in printed(environment.run("uncollapse", "--help"))
    assert "hopfield-table1" in printed(environment.run("uncollapse", "reproduce", "list"))
    printed(
        environment.run("uncollapse", "reproduce", "claims", "--only", "hopfield-main", "--quick", "--out", "audit")
    )
    claims = json.loads((environment.folder / "audit" / "claims.json").read_text(encoding="utf-8"))["claims"]
    assert {claim["id"] for claim in claims} == {"hopfield-main-gpt2", "hopfield-main-vit"}
    assert {claim["verdict"] for claim in claims}.isdisjoint({"pending", "error"})
    assert sorted(path.name for path in environment.folder.iterdir()) == ["audit"]
