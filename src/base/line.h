/* base/line.h - the size of a cache line: words that different threads write are put in separate
 * lines.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  none.
 * Units:   bytes.
 * Limits:  a multiple of 64.
 */
#ifndef HL_BASE_LINE_H
#define HL_BASE_LINE_H

#if defined(__powerpc64__)
#define HL_LINE 128
#else
#define HL_LINE 64
#endif

#endif
