# shellcheck shell=bash
# What tools/kernels and tools/zram-guest have in common: Debian's kernels, and an initramfs. Sourced, with $OUT set.
#
# Kernels come from the mirror that apt has this system's own packages from, and are checked by apt as any package is;
# nothing is installed.

# The mirror of this system's own Debian packages.
mirror() {
	local found
	found=$(apt-get indextargets --format "\$(LABEL) \$(REPO_URI)" 'Created-By: Packages' |
		awk '$1 == "Debian" { print $2; exit }')
	if [[ -z $found ]]; then
		echo "apt knows no mirror of Debian's packages here" >&2
		return 1
	fi
	echo "$found"
}

# apt_for SUITE COMMAND...: apt with that suite's packages and no others, which knows nothing of what is installed here.
apt_for() {
	local root=$OUT/apt/$1
	mkdir -p "$root"/{lists,archives}/partial
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $MIRROR $1 main" >"$root/sources.list"
	shift
	local options=(-qq -o Dir::Etc::SourceList="$root/sources.list" -o Dir::Etc::SourceParts=/dev/null
		-o Dir::Etc::Preferences=/dev/null -o Dir::Etc::PreferencesParts=/dev/null -o Dir::State="$root" -o Dir::State::Lists="$root/lists" -o Dir::State::Status=/dev/null
		-o Dir::Cache="$root" -o APT::Sandbox::User=root -o APT::Architecture=amd64 -o Acquire::Languages=none
		-o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false)
	"$1" "${options[@]}" "${@:2}"
}

# depends SUITE PACKAGE PATTERN: the first package that this one depends on and whose name matches.
depends() {
	apt_for "$1" apt-cache depends --no-recommends --no-suggests "$2" | sed -n 's/^ *Depends: //p' | grep -m 1 -E "$3"
}

# fetch SUITE: the suite's newest cloud kernel; prints its release, and the package that has it.
fetch() {
	local suite=$1 image binary
	apt_for "$suite" apt-get update || echo "$suite: what was fetched before is used" >&2
	image=$(depends "$suite" linux-image-cloud-amd64 '^linux-image-[0-9].*-cloud-amd64')
	# Where image and modules are packages of their own the one depends on the other.
	binary=$(depends "$suite" "$image" '^linux-binary-') || binary=$image
	(cd "$OUT/apt/$suite/archives" && apt_for "$suite" apt-get download "$binary")
	echo "${image#linux-image-}" "$OUT/apt/$suite/archives/${binary}_"*.deb
}

# put FILE NAME: a program, and the loader and libraries that it wants, into the initramfs.
put() {
	local library
	install -D "$1" "$OUT/root/bin/$2"
	for library in $(ldd "$1" 2>/dev/null | grep -o '/[^ ]*'); do
		install -D "$library" "$OUT/root$library"
	done
}

# pack: the initramfs, of what is in $OUT/root.
pack() {
	(cd "$OUT/root" && find . | cpio --quiet -o -H newc | gzip -1) >"$OUT/initramfs"
}

# emulate SECONDS LOG ARGUMENT...: a machine of two CPUs whose console goes to a log, which is shown as it comes. One
# that has not turned itself off by then has hung. (KVM=1 where there is /dev/kvm: ten times as fast.)
emulate() {
	local accelerator=(-accel "tcg,thread=multi" -cpu max)
	if [[ -n ${KVM-} ]]; then
		accelerator=(-accel kvm -cpu "host${KVM_FEATURES-}")
	fi
	timeout "$1" qemu-system-x86_64 "${accelerator[@]}" -smp 2 -nodefaults -no-reboot -display none -serial stdio \
		"${@:3}" </dev/null | sed -u 's/\r$//' | tee "$2" || true
}
