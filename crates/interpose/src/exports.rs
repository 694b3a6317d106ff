//! The functions of libc that the library stands before (functions.in): each jumps to the function of that name in one
//! of our modules, which does what is to be done around libc's own. Any of them may be the first of ours that a process
//! calls: before it, all addresses are filled in (relocate.rs).

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

/// Defines them, by modules; those that are too frequent for that, which go to libc's own at once while there is
/// nothing to do around them; and those that the loader sees only where the user asks for it (visible.rs), in a section
/// of their own by which the command knows them.
#[cfg(panic = "abort")]
macro_rules! functions {
    (
        frequent { $($frequent:ident => $call:ident;)* }
        visible { $($visible:ident;)* }
        answers { $($answers:ident;)* }
        hooks { $($module:ident { $($hook:ident $(=> $hook_call:ident)?;)* })* }
        unhooked { $($other:tt)* }
    ) => {
        mod bare {
            $($(before!($module $hook ".text.startup.zfolio");)*)*
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
                        here = sym crate::pagemap_reads::$frequent,
                        real = sym crate::pagemap_reads::REAL,
                        offset = const crate::pagemap_reads::ReadCall::$call as usize * size_of::<usize>(),
                        call = const crate::pagemap_reads::ReadCall::$call as usize,
                        find = sym super::find,
                    )
                }
            )*
        }
    };
}

#[cfg(panic = "abort")]
include!("functions.in");

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
        resolve = sym crate::pagemap_reads::resolve,
    )
}
