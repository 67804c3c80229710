# Stand-in for the published valkey/valkey:8.1, with the same file layout as far as users of that
# image can tell: Debian's unmodified server of the same minor version on the PATH, a /data to write
# to, and an entrypoint that takes options. Runs as any uid.
FROM debian:trixie-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends valkey-server valkey-tools \
 && rm -rf /var/lib/apt/lists/* /etc/valkey /var/lib/valkey \
 && valkey-server --version | grep -F ' v=8.1.' \
 && mkdir /data && chmod 0777 /data \
 && printf '%s\n' '#!/bin/sh' \
      'case "$1" in -*|*.conf) set -- valkey-server "$@";; esac' \
      'exec "$@"' > /usr/local/bin/docker-entrypoint.sh \
 && chmod 0755 /usr/local/bin/docker-entrypoint.sh
WORKDIR /data
EXPOSE 6379
ENTRYPOINT ["docker-entrypoint.sh"]
CMD ["valkey-server"]
