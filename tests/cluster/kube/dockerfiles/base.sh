#!/bin/sh
# base.sh SUITE FOLDER: a root file system of Debian, less what the published slim image leaves out,
# as FOLDER/rootfs.tar. Runs in pid and mount namespaces of its own (see localkube/images.py): when
# it is killed, so are debootstrap's children and its mounts.
set -eu
suite=$1 folder=$2
root=$folder/rootfs
debootstrap --variant=minbase --include=ca-certificates "$suite" "$root"

cd "$root"
rm -rf var/cache/apt/*.bin var/cache/apt/archives/*.deb var/lib/apt/lists/* var/cache/debconf/*-old
rm -rf var/log/*.log var/log/apt/* usr/share/doc/* usr/share/man/* usr/share/locale/*
rm -rf usr/share/info/* usr/share/groff/* usr/share/lintian/*
mkdir -p etc/dpkg/dpkg.cfg.d etc/apt/apt.conf.d
for path in doc man locale info; do
	echo "path-exclude /usr/share/$path/*"
done >etc/dpkg/dpkg.cfg.d/slim
cat >etc/apt/apt.conf.d/slim <<-'CONFIG'
	Acquire::Languages "none";
	APT::Install-Recommends "false";
	Dir::Cache::pkgcache "";
	Dir::Cache::srcpkgcache "";
CONFIG
# Fixed times and order: the same packages make the same layer.
tar --create --file "$folder/rootfs.tar" --numeric-owner --sort=name --mtime=@0 .
rm -rf "$root"
