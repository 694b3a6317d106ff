"""The C project that `bench/build` builds: parsers of tree-sitter, as editors build them for the languages they colour.

They are generated C, of which one file takes the compiler 30 to 300 MiB and one to ten seconds: large enough for the
smallest pool that zswap can be given on a machine of 24 GiB. Cargo fetches the sources; their checksums are here.
"""

import glob
import hashlib
import os
import subprocess
import tarfile

# Name, version, SHA-256 of the archive, and the folders with a parser. The first USUAL are built unless more is asked
# for, large and small ones in turn; the compiler takes 200 to 330 MiB for each of the rest.
USUAL = 12
CRATES = [
    ("cpp", "0.23.4", "df2196ea9d47b4ab4a31b9297eaa5a5d19a0b121dceb9f118f6790ad0ab94743", ["src"]),
    ("go", "0.25.0", "c8560a4d2f835cc0d4d2c2e03cbd0dde2f6114b43bc491164238d333e28b16ea", ["src"]),
    ("typescript", "0.23.2", "6c5f76ed8d947a75cc446d5fccd8b602ebf0cde64ccf2ffa434d873d7a575eff",
     ["typescript/src", "tsx/src"]),
    ("c", "0.24.2", "a9b2eb57a55fed6b00812912e730b7a275cf4fe98bfd6a5d76263d4438371728", ["src"]),
    ("ruby", "0.23.1", "be0484ea4ef6bb9c575b4fdabde7e31340a8d2dbc7d52b321ac83da703249f95", ["src"]),
    ("java", "0.23.5", "0aa6cbcdc8c679b214e616fd3300da67da0e492e066df01bcf5a5921a71e90d6", ["src"]),
    ("php", "0.25.1", "d9779e392d38af4254f48be0e57b7eed4d50ec7a6e55a7e5e2e74df8f8f032d3", ["php/src"]),
    ("python", "0.25.0", "6bf85fd39652e740bf60f46f4cda9492c3a9ad75880575bf14960f775cb74a1c", ["src"]),
    ("bash", "0.25.1", "9e5ec769279cc91b561d3df0d8a5deb26b0ad40d183127f409494d6d8fc53062", ["src"]),
    ("javascript", "0.25.0", "68204f2abc0627a90bdf06e605f5c470aa26fdcb2081ea553a04bdad756693f5", ["src"]),
    ("elixir", "0.3.5", "66dd064a762ed95bfc29857fa3cb7403bb1e5cb88112de0f6341b7e47284ba40", ["src"]),
    ("rust", "0.24.2", "439e577dbe07423ec2582ac62c7531120dbfccfa6e5f92406f93dd271a120e45", ["src"]),
    ("haskell", "0.24.1", "781de30e0d1ec8e6db4ed799d36ce1cedaf4684374dada45ebe2a8ea44c3f814", ["src"]),
    ("ocaml", "0.26.0", "43adb10fcccbcbbce0f4adc9dab7cd55f0a5eafc2d71bd4c03fcc5d6767066e0", ["grammars/ocaml/src"]),
    ("c-sharp", "0.23.5", "c1aac67f1ad71de1d6d39708d34811081c26dfa495658de6c14c34200849357c", ["src"]),
    ("scala", "0.26.9", "cf3d726ede1e8272fd16c91c6718089e06b04f9243a47026d792debc8831ec34", ["src"]),
    ("swift", "0.7.4", "2688c06564afa397313e0db17d140a73e2c6a47f3884794614246167c9dd5dfd", ["src"]),
]
# With -pipe no assembly goes through files, whose pages a control group would be charged with.
MAKEFILE = """\
$(O)/%.o: %.c
\t@mkdir -p $(@D)
\tgcc -O2 -pipe -I $(<D) -c -o $@ $<
"""


def cached(name, version):
    """Cargo's copy of the archive, or None."""
    home = os.environ.get("CARGO_HOME", os.path.expanduser("~/.cargo"))
    return next(iter(glob.glob(f"{home}/registry/cache/*/tree-sitter-{name}-{version}.crate")), None)


def fetch(folder):
    """Has Cargo fetch what is not there yet."""
    os.makedirs(f"{folder}/fetch/src", exist_ok=True)
    open(f"{folder}/fetch/src/lib.rs", "w").close()
    with open(f"{folder}/fetch/Cargo.toml", "w") as file:
        file.write('[workspace]\n[package]\nname = "sources"\nversion = "0.0.0"\n[dependencies]\n')
        file.writelines(f'tree-sitter-{name} = "={version}"\n' for name, version, *_ in CRATES)
    subprocess.run(["cargo", "fetch", "-q"], cwd=f"{folder}/fetch", check=True)


def unpack(folder):
    """Lays the sources into a folder, each archive checked; returns the C files, relative to it, in a fixed order."""
    if not all(cached(name, version) for name, version, *_ in CRATES):
        fetch(folder)
    sources = []
    for name, version, expected, folders in CRATES:
        archive = cached(name, version)
        with open(archive, "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != expected:
            raise ValueError(f"{archive}: its SHA-256 is {found}, not {expected}")
        top = f"tree-sitter-{name}-{version}"
        if not os.path.isdir(f"{folder}/{top}"):
            with tarfile.open(archive) as tar:
                tar.extractall(f"{folder}/{top}.new", filter="data")
            os.rename(f"{folder}/{top}.new/{top}", f"{folder}/{top}")
            os.rmdir(f"{folder}/{top}.new")
        for place in folders:
            sources += [f"{top}/{place}/{file}" for file in ("parser.c", "scanner.c")
                        if os.path.exists(f"{folder}/{top}/{place}/{file}")]
    with open(f"{folder}/Makefile", "w") as file:
        file.write(MAKEFILE)
    return sources


def make(folder, objects_folder, sources, jobs):
    """The command that builds, all of it: of a turn in which the kernel killed somebody, parts of objects are left."""
    objects = [f"{objects_folder}/{source[:-2]}.o" for source in sources]
    return ["make", "-B", "-s", f"-j{jobs}", "-C", folder, f"O={objects_folder}", *objects]


def digests(objects_folder, sources):
    """SHA-256 of each object file, by its source."""
    found = {}
    for source in sources:
        with open(f"{objects_folder}/{source[:-2]}.o", "rb") as file:
            found[source] = hashlib.file_digest(file, "sha256").hexdigest()
    return found
