#!/bin/sh
# The sources of the training text: `sh fetch.sh OUT_FOLDER [few]` fills OUT_FOLDER/wheels (PyPI) and OUT_FOLDER/debs
# (Debian 12), and holds them against sources.sha256. Versions are what the shipped model was trained on. corpus.py leaves
# out four of them for their licences. `few`: 9 of the 104, those that texts.py cuts its texts from, to rehearse with.
set -eu
stop() {
  echo "fetch.sh: $*" >&2
  exit 1
}
here=$(cd "$(dirname "$0")" && pwd)
[ $# -eq 1 ] || [ "$#:${2-}" = "2:few" ] || stop "give the folder to fill, and perhaps few: sh fetch.sh OUT_FOLDER [few]"
out=$1
command -v apt-get >/dev/null || stop "there is no apt-get here; run it on Debian 12, or in a container of it"
python3 -m pip --version >/dev/null 2>&1 || stop "this python3 has no pip to download with; install python3-pip"

if [ "${2-}" = few ]; then
  wheels="alembic==1.20.1 mypy==2.4.1 pytest==9.2.0 sqlglot==30.30.0 tox==4.67.15 twisted==26.10.0"
  debs="python-pytest-doc=7.2.1-2 python-sqlalchemy-doc=1.4.46+ds1-1 python3.11-doc=3.11.2-6+deb12u9"
else
  wheels="
aiohttp==3.14.5 alembic==1.20.1 anyio==4.16.0 astropy==8.0.2 attrs==26.1.0 babel==2.19.0 beautifulsoup4==4.15.0
black==26.10.1 bokeh==3.9.2 bottle==0.13.4 build==1.6.1 celery==5.7.0 click==8.5.1 coverage==7.17.5
cryptography==50.0.2 cvxpy==1.9.3 dask==2026.8.0 distributed==2026.8.0 django==5.2.19 docutils==0.23 fabric==3.2.3
fastapi==0.165.0 flask==3.1.3 fsspec==2026.9.0 hatchling==1.33.0 html5lib==1.1 httpx==0.28.1 imageio==2.38.1
invoke==3.0.3 ipython==9.18.1 jinja2==3.1.6 joblib==1.6.0 jsonschema==4.26.0 jupyter_server==2.21.1 keyring==25.7.0
kombu==5.7.0 lxml==6.1.3 markdown==3.11.3 marshmallow==4.4.0 matplotlib==3.11.2 mistune==3.4.0 more_itertools==11.2.1
mypy==2.4.1 nbconvert==7.17.2 networkx==3.6.1 nltk==3.10.4 notebook==7.6.5 numpy==2.4.6 pandas==3.1.1 paramiko==5.1.0
peewee==4.5.3 pip==26.3 pluggy==1.7.0 poetry_core==2.5.0 pydantic==2.14.4 pygments==2.21.0 pymc==5.28.5 pytest==9.2.0
requests==2.34.2 rich==15.0.0 sanic==25.12.1 scikit_image==0.26.0 scikit_learn==1.9.1 scipy==1.17.1 scrapy==2.19.0
seaborn==0.13.2 setuptools==84.2.1 sortedcontainers==2.4.0 sphinx==9.0.4 sqlalchemy==2.1.9 sqlglot==30.30.0
starlette==1.10.0 statsmodels==0.15.0 sympy==1.14.0 tornado==6.6.1 tox==4.67.15 tqdm==4.70.1 trio==0.35.0 twine==7.0.0
twisted==26.10.0 virtualenv==21.15.11 werkzeug==3.1.9 wtforms==3.3.2 xarray==2026.9.0 zarr==3.1.6"
  debs="
libpython3.11-testsuite=3.11.2-6+deb12u9 python-astropy-doc=5.2.1-2+deb12u1 python-attr-doc=22.2.0-1
python-celery-doc=5.2.6-5 python-dask-doc=2022.12.1+dfsg-2 python-django-doc=3:3.2.25-0+deb12u7
python-flask-doc=2.2.2-3 python-pandas-doc=1.5.3+dfsg-2 python-pytest-doc=7.2.1-2 python-scipy-doc=1.10.1-2
python-skimage-doc=0.19.3-8 python-sqlalchemy-doc=1.4.46+ds1-1 python-sympy-doc=1.11.1-1
python-tornado-doc=6.2.0-3+deb12u4 python-werkzeug-doc=2.2.2-3+deb12u1 python-xarray-doc=2023.01.0-1.1
python3-doc=3.11.2-1 python3.11-doc=3.11.2-6+deb12u9 sphinx-doc=5.3.0-4"
fi

mkdir -p "$out/wheels" "$out/debs"
# shellcheck disable=SC2086
python3 -m pip download --no-deps --only-binary=:all: --python-version 3.11 --platform manylinux2014_x86_64 \
  --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux_2_24_x86_64 \
  --platform manylinux_2_26_x86_64 --platform manylinux_2_34_x86_64 -d "$out/wheels" $wheels ||
  stop "pip could not download all wheels; its message above says which"
# shellcheck disable=SC2086
(cd "$out/debs" && apt-get download $debs) ||
  stop "apt-get could not download all packages; it knows these versions on Debian 12 after apt-get update, and" \
    "https://snapshot.debian.org keeps those that a later point release has replaced: put them into $out/debs"
(cd "$out" && sha256sum --check --quiet --strict --ignore-missing "$here/sources.sha256") ||
  stop "a file is not what the shipped model was trained on (above); delete it and run this again"
echo "fetch.sh: $(ls "$out/wheels" "$out/debs" | grep -c -e '\.whl$' -e '\.deb$') sources in $out, as in sources.sha256"
