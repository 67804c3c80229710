# Stand-in for the published python:3.13-slim and postgres:17-alpine, which the manifests of examples/
# name: Debian's unmodified packages of the same minor versions, with the programs on the PATH.
FROM debian:trixie-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3-minimal libpython3-stdlib postgresql-17 \
 && rm -rf /var/lib/apt/lists/* /var/lib/postgresql/17
ENV PATH=/usr/lib/postgresql/17/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
RUN python3 --version | grep -F ' 3.13.' && psql --version | grep -F ' 17.'
CMD ["sh"]
