//! The functions of libc that the library stands before (zfolio.map): each jumps to the function of that name in one of our modules, which does what is to be
//! done around libc's own. Any of them may be the first of ours that a process calls: before it, all addresses are filled in (relocate.rs).

/// A function of this name that goes to the one of that module, in a section.
#[cfg(panic = "abort")]
macro_rules! before {
    ($module:ident $name:ident $section:literal) => {
        #[allow(non_snake_case)]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        #[unsafe(link_section = $section)]
        extern "C" fn $name() {
            core::arch::naked_asm!(
                "cmp dword ptr [rip + {is_done}], 0",
                "jne 2f",
                "call {finish}",
                "2:",
                "jmp {here}",
                is_done = sym crate::relocate::IS_DONE,
                finish = sym super::finish,
                here = sym crate::$module::$name,
            )
        }
    };
}

/// Defines them, by modules; those that are too frequent for that, which go to libc's own at once while there is nothing to do around them; and those that the
/// loader sees only where the user asks for it (visible.rs), in a section of their own by which the command knows them.
macro_rules! exports {
    (frequent { $($frequent:ident => $call:ident)* } visible { $($visible:ident)* } $($module:ident: $($name:ident)*;)*) => {
        /// The functions that the library stands before.
        pub const NAMES: &[&str] = &[$($(stringify!($name)),*),*, $(stringify!($frequent)),*, $(stringify!($visible)),*];

        #[cfg(panic = "abort")]
        mod bare {
            $($(before!($module $name ".text.startup.zfolio");)*)*
            $(before!(visible $visible ".text.visible.zfolio");)*
            $(
                #[allow(non_snake_case)]
                #[unsafe(no_mangle)]
                #[unsafe(naked)]
                #[unsafe(link_section = ".text.startup.zfolio")]
                extern "C" fn $frequent() {
                    core::arch::naked_asm!(
                        "cmp dword ptr [rip + {is_awake}], 0",
                        "jne {here}",
                        "mov rax, qword ptr [rip + {real} + {offset}]",
                        "test rax, rax",
                        "jz 2f",
                        "jmp rax",
                        "2:",
                        "mov eax, {call}",
                        "call {find}",
                        "jmp rax",
                        is_awake = sym control::page_tables::IS_AWAKE,
                        here = sym crate::looks::$frequent,
                        real = sym crate::looks::REAL,
                        offset = const crate::looks::Call::$call as usize * size_of::<usize>(),
                        call = const crate::looks::Call::$call as usize,
                        find = sym super::find,
                    )
                }
            )*
        }
    };
}

exports! {
    frequent {
        read => Read __read_chk => ReadChk
        pread => Pread pread64 => Pread64 __pread_chk => PreadChk __pread64_chk => Pread64Chk
        readv => Readv preadv => Preadv preadv64 => Preadv64 preadv2 => Preadv2 preadv64v2 => Preadv64v2
    }
    visible {
        open open64 openat openat64 __open_2 __open64_2 __openat_2 __openat64_2 fopen fopen64 freopen freopen64
        sysinfo sysconf __sysconf get_phys_pages get_avphys_pages
    }
    libc_fork: fork _Fork daemon forkpty;
    advice: madvise mremap;
    ioctl: ioctl;
    clone_calls: clone __clone;
    wait: wait wait3 wait4 waitpid waitid;
    loan: vmsplice setsockopt;
    rights: unshare setuid seteuid setreuid setresuid setfsuid setfsgid setgid setegid setregid setresgid setgroups initgroups capset chroot setns prctl;
    syscall: syscall;
    exec: execve execv execvp execvpe execl execlp execle fexecve execveat posix_spawn posix_spawnp pidfd_spawn pidfd_spawnp;
}

/// What the library answers itself, with nothing of libc's behind it.
pub const ANSWERS: &[&str] = &["__asan_default_options"];

/// Fills in the addresses. All registers that hold arguments stay, of functions with any number of them too.
#[cfg(panic = "abort")]
#[unsafe(naked)]
extern "C" fn finish() {
    core::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        // How many vector registers hold arguments.
        "push rax",
        "sub rsp, 8",
        "call {finish}",
        "add rsp, 8",
        "pop rax",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "ret",
        finish = sym crate::relocate::finish,
    )
}

/// The address of libc's function of the number in rax. All registers that hold arguments stay.
#[cfg(panic = "abort")]
#[unsafe(naked)]
#[unsafe(link_section = ".text.startup.zfolio")]
extern "C" fn find() {
    core::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        "mov edi, eax",
        "call {resolve}",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "ret",
        resolve = sym crate::looks::resolve,
    )
}

#[cfg(test)]
mod tests {
    use super::{ANSWERS, NAMES};

    #[test]
    fn the_linker_exports_them_all_and_nothing_else() {
        let map = include_str!("../../libzfolio/zfolio.map");
        let (_, global) = map.split_once("global:").unwrap();
        let (global, _) = global.split_once("local:").unwrap();
        let mut exported: Vec<&str> =
            global.split(';').map(str::trim).filter(|name| !name.is_empty()).collect();
        let mut names = [NAMES, ANSWERS].concat();
        exported.sort_unstable();
        names.sort_unstable();
        assert_eq!(exported, names);
    }
}
