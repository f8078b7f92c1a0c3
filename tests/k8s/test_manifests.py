"""The Kubernetes manifests: valid for the pinned version, restricted, replaced not rolled, and complete as rendered.

Checks the files in pure Python; renders with kubectl or kustomize only where one is installed.
"""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
K8S = ROOT / "k8s"
BASE = K8S / "base"
OVERLAYS = ("cpu", "gpu")
VERSION = "1.32"
PODS = ("redis", "engine", "gateway")

Manifest = dict[str, Any]


def documents(path: Path) -> list[Manifest]:
    return [document for document in yaml.safe_load_all(path.read_text(encoding="utf-8")) if document]


def kustomization(folder: Path) -> Manifest:
    (loaded,) = documents(folder / "kustomization.yaml")
    return loaded


def base_manifests() -> list[Manifest]:
    return [document for name in kustomization(BASE)["resources"] for document in documents(BASE / name)]


def of_kind(manifests: list[Manifest], kind: str) -> dict[str, Manifest]:
    return {entry["metadata"]["name"]: entry for entry in manifests if entry["kind"] == kind}


def pod_spec(name: str) -> Manifest:
    spec: Manifest = of_kind(base_manifests(), "Deployment")[name]["spec"]["template"]["spec"]
    return spec


def containers(name: str) -> list[Manifest]:
    spec = pod_spec(name)
    return [*spec.get("initContainers", []), *spec["containers"]]


def folders() -> list[Path]:
    return [BASE, *(K8S / "overlays" / name for name in OVERLAYS)]


@pytest.mark.parametrize("folder", folders(), ids=lambda folder: folder.name)
def test_kustomization_lists_every_file_and_only_those(folder: Path) -> None:
    listed = set(kustomization(folder)["resources"]) | {p["path"] for p in kustomization(folder).get("patches", [])}
    present = {path.name for path in folder.glob("*.yaml")} - {"kustomization.yaml"}
    assert {name for name in listed if not name.startswith("..")} == present
    assert all((folder / name).exists() for name in listed)


@pytest.mark.parametrize("manifest", base_manifests(), ids=lambda m: f"{m['kind']}-{m['metadata']['name']}")
def test_manifest_fits_the_schema(manifest: Manifest) -> None:
    kubernetes_validate.validate(manifest, VERSION, strict=True)


def test_schema_check_notices_a_misspelt_field() -> None:
    manifest = of_kind(base_manifests(), "Service")["engine"]
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(manifest | {"specs": {}}, VERSION, strict=True)


@pytest.mark.parametrize("name", PODS)
def test_pods_pass_the_restricted_level(name: str) -> None:
    spec = pod_spec(name)
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    assert not [volume for volume in spec["volumes"] if "hostPath" in volume]
    for container in containers(name):
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("name", PODS)
def test_pods_are_replaced_one_at_a_time_without_foreign_names(name: str) -> None:
    deployment = of_kind(base_manifests(), "Deployment")[name]["spec"]
    assert deployment["strategy"] == {"type": "Recreate"}
    assert deployment["replicas"] == 1
    spec = pod_spec(name)
    assert spec["enableServiceLinks"] is False, "a Service named gateway would inject GATEWAY_PORT=tcp://..."
    assert spec["automountServiceAccountToken"] is False
    assert spec["terminationGracePeriodSeconds"] >= 30


@pytest.mark.parametrize("name", PODS)
def test_containers_have_limits_and_a_pinned_image(name: str) -> None:
    tags = {entry["name"]: entry["newTag"] for entry in kustomization(BASE)["images"]}
    for container in containers(name):
        for side in ("requests", "limits"):
            assert {"cpu", "memory"} <= set(container["resources"][side])
        image, _, tag = container["image"].partition(":")
        assert tags.get(image, tag) not in ("", "latest")


@pytest.mark.parametrize("name", PODS)
def test_probes_tell_alive_from_ready(name: str) -> None:
    (container,) = pod_spec(name)["containers"]
    if name == "redis":
        assert {"startupProbe", "livenessProbe", "readinessProbe"} <= set(container)
        return
    assert container["livenessProbe"]["httpGet"]["path"] == "/health/live"
    assert container["readinessProbe"]["httpGet"]["path"] == "/health/ready"


def test_engine_has_a_quarter_of_an_hour_to_load() -> None:
    (container,) = pod_spec("engine")["containers"]
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 900
    deployment = of_kind(base_manifests(), "Deployment")["engine"]["spec"]
    assert deployment["progressDeadlineSeconds"] > startup["periodSeconds"] * startup["failureThreshold"]


def test_services_and_policies_point_at_pods_that_exist() -> None:
    deployments = of_kind(base_manifests(), "Deployment")
    labels = {name: d["spec"]["template"]["metadata"]["labels"] for name, d in deployments.items()}
    ports = {name: {p["name"] for c in pod_spec(name)["containers"] for p in c["ports"]} for name in PODS}
    for name, service in of_kind(base_manifests(), "Service").items():
        assert service["spec"]["selector"] == labels[name]
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports[name]
    for name, policy in of_kind(base_manifests(), "NetworkPolicy").items():
        if name != "default-deny":
            assert policy["spec"]["podSelector"]["matchLabels"] == labels[name]
            assert {p["port"] for rule in policy["spec"]["ingress"] for p in rule["ports"]} <= ports[name]


def test_only_the_gateway_reaches_engine_and_redis() -> None:
    policies = of_kind(base_manifests(), "NetworkPolicy")
    assert policies["default-deny"]["spec"] == {"podSelector": {}, "policyTypes": ["Ingress"]}
    gateway = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "gateway"}}}
    for name in ("engine", "redis"):
        assert [rule["from"] for rule in policies[name]["spec"]["ingress"]] == [[gateway]]


def test_volumes_are_claimed_and_the_gateway_only_reads() -> None:
    claims = set(of_kind(base_manifests(), "PersistentVolumeClaim"))
    for name in PODS:
        used = {v["persistentVolumeClaim"]["claimName"] for v in pod_spec(name)["volumes"] if "emptyDir" not in v}
        assert used <= claims
    (container,) = pod_spec("gateway")["containers"]
    assert {"name": "home", "mountPath": "/var/lib/soloist", "readOnly": True} in container["volumeMounts"]


def renderer() -> list[str] | None:
    for name, words in (("kubectl", ["kubectl", "kustomize"]), ("kustomize", ["kustomize", "build"])):
        if shutil.which(name):
            return words
    return None


@pytest.mark.skipif(renderer() is None, reason="neither kubectl nor kustomize is installed")
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_rendered_overlay_is_valid_and_says_its_device(overlay: str) -> None:
    words = renderer()
    assert words is not None
    done = subprocess.run([*words, K8S / "overlays" / overlay], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    rendered = [document for document in yaml.safe_load_all(done.stdout) if document]
    for manifest in rendered:
        kubernetes_validate.validate(manifest, VERSION, strict=True)
        assert manifest["kind"] == "Namespace" or manifest["metadata"]["namespace"] == "soloist"
    (container,) = of_kind(rendered, "Deployment")["engine"]["spec"]["template"]["spec"]["containers"]
    environment = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert environment["ENGINE_DEVICE"] == {"cpu": "cpu", "gpu": "cuda"}[overlay]
    assert container["resources"]["limits"].get("nvidia.com/gpu") == (None if overlay == "cpu" else "1")
    (settings,) = of_kind(rendered, "ConfigMap").values()
    assert set(settings["data"]) == {"model", "otlp-endpoint"}
