//! Size-class allocator for compressed objects.
