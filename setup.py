"""Maps the folders of the repository to the one import package ``export_queue``; the rest is in pyproject.toml."""

from setuptools import find_packages, setup

ROOT = "export_queue"
FOLDERS = {
    "": "provider",
    "core": "core",
    "hooks": "hooks",
    "operators": "operators",
    "sensors": "sensors",
    "dags_examples": "dags_examples",
}

# Computed, because a forgotten sub-package works in an editable install and is missing from the wheel without a word.
packages: list[str] = []
package_dir: dict[str, str] = {}
for name, folder in FOLDERS.items():
    package = f"{ROOT}.{name}".rstrip(".")
    package_dir[package] = folder
    packages += [package, *(f"{package}.{inner}" for inner in find_packages(folder))]

setup(
    packages=packages,
    package_dir=package_dir,
    package_data={
        ROOT: ["py.typed"],
        f"{ROOT}.core.store.postgresql": ["sql/*.sql"],
        f"{ROOT}.page": ["templates/*.html", "templates/*.css", "templates/*.svg"],
    },
    include_package_data=False,
)
