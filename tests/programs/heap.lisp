;;; A table of records with names, prices and tags, in SBCL's heap, which is executable; prints a sum after each step.
;;;
;;;     sbcl --dynamic-space-size 1024 --script heap.lisp ENTRIES

(declaim (optimize speed))

(defstruct entry name price tags)

(defvar *state* 2463534242)
(declaim (type (unsigned-byte 32) *state*))

(defun below (bound)
  "A 32-bit xorshift below BOUND."
  (declare (type (unsigned-byte 32) bound))
  (flet ((step-by (n) (setf *state* (logxor *state* (ldb (byte 32 0) (ash *state* n))))))
    (step-by 13) (step-by -17) (step-by 5)
    (mod *state* bound)))

(defvar *words* #("paid" "late" "order" "parcel" "returned" "address" "checked" "twice" "customer" "called" "back"))

(defun name (i)
  (let ((words (loop repeat 4 collect (aref *words* (below (length *words*))))))
    (format nil "~{~A ~}~D" words i)))

(defun sum (table)
  "Of all there is, in whatever order."
  (let ((sum 0))
    (declare (type (unsigned-byte 62) sum))
    (maphash (lambda (key entry)
               (let ((hash (logxor (sxhash (entry-name entry)) (* 31 (the fixnum key)) (the fixnum (entry-price entry)))))
                 (dolist (tag (entry-tags entry)) (setf hash (logxor hash (* 7 (the fixnum tag)))))
                 (setf sum (ldb (byte 62 0) (+ sum (ldb (byte 62 0) hash))))))
             table)
    (format t "~D entries, ~D~%" (hash-table-count table) sum)
    (finish-output)))

(let ((count (parse-integer (first (last sb-ext:*posix-argv*))))
      (table (make-hash-table)))
  (dotimes (i count)
    (setf (gethash i table)
          (make-entry :name (name i) :price (below 100000) :tags (list (below 50) (below 50) i))))
  (sum table)
  (dotimes (i count)
    (cond ((zerop (mod i 3)) (remhash i table))
          ((zerop (mod i 5)) (setf (entry-name (gethash i table)) (name i)))))
  (gc :full t)
  (sum table)
  (dotimes (i (floor count 4))
    (setf (gethash (+ count i) table) (make-entry :name (name i) :price i :tags (list i))))
  (sum table))
