// Signals: the guard pages of plain runs, UBSan traps, stack overflow, time limit.
#pragma once
#include "access.h"

namespace {
struct sigaction old_segv, old_fpe, old_bus, old_ill;
void fault_exit() {
  Worker* w = tw;
  const uintptr_t a = w->fault;
  const uint64_t off = a - (uintptr_t)region;
  const uintptr_t pc = (uintptr_t)w->cur->pc;
  if (w->ill >= 0) {  // a UBSan trap: ud1 whose operand is the check's number
    const char* nm = "array index, alignment, division by zero or shift count";
    switch (w->ill) {
      case 18:
        nm = "index outside a thread-private (or struct) array";
        break;
      case 22:
        nm = "misaligned or null access";
        break;
      case 3:
        nm = "integer division by zero";
        break;
      case 20:
        nm = "shift count out of range";
        break;
      case 1:
      case 9:
      case 10:
        nm = "missing return or unreachable code reached";
        break;
    }
    report("undefined", pc, 0, "%s (check %d)", nm, w->ill);
  } else if (w->timeout)
    report("timeout", pc, 0, "still running after %.1f s: endless loop?", D->timeout_s);
  else if (off < REGION) {
    Slot& s = slots[off >> SLOT_SHIFT];
    report("out-of-bounds", pc, 0, "access at byte offset %lld of %s '%s' (%zu bytes)",
           (long long)(a - (uintptr_t)s.base), s.kind == K_TG ? "threadgroup memory" : "buffer", s.name,
           s.size);
  } else if (a - (uintptr_t)w->stacks < (size_t)MAXT * STACK)
    report("stack-overflow", pc, 0, "thread stack overflow (%zu KiB per thread)", STACK >> 10);
  else
    report("fault", pc, 0, "fault at address %p", (void*)a);
  die(w);
}
void on_fault(int sig, siginfo_t* si, void* uc_) {
  Worker* w = tw;
  ucontext_t* uc = (ucontext_t*)uc_;
  if (sig == SIGRTMIN + 5) {
    if (!w || !w->cur) {
      g_abort = true;
      return;
    }
    w->timeout = true;
  } else if (!w || !w->cur) {
    sigaction(sig,
              sig == SIGSEGV  ? &old_segv
              : sig == SIGBUS ? &old_bus
              : sig == SIGILL ? &old_ill
                              : &old_fpe,
              nullptr);
    return;
  }
  w->ill = -1;
  if (sig == SIGILL) {
    const unsigned char* q = (const unsigned char*)uc->uc_mcontext.gregs[REG_RIP];
    if (q[0] == 0x67 && q[1] == 0x0f && q[2] == 0xb9 && q[3] == 0x40)
      w->ill = q[4];
    else if (q[0] == 0x0f && q[1] == 0xb9)
      w->ill = q[3];
    else
      w->ill = 0;
  }
  w->fault = sig == SIGFPE || sig == SIGILL ? 0 : (uintptr_t)si->si_addr;
  w->cur->pc = (void*)uc->uc_mcontext.gregs[REG_RIP];
  const uintptr_t sb = (uintptr_t)w->stacks + (size_t)w->cur->tid * STACK;
  uintptr_t sp = ((uintptr_t)uc->uc_mcontext.gregs[REG_RSP] - 256) & ~15ull;
  if (sp < sb + PAGE + 8192) sp = (sb + STACK - 4096) & ~15ull;  // overflow: go on near the top of this stack
  uc->uc_mcontext.gregs[REG_RSP] = sp - 8;
  uc->uc_mcontext.gregs[REG_RIP] = (greg_t)&fault_exit;
}

}  // namespace
