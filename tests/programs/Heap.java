import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * A heap of objects that lives through several collections: maps, lists, strings, boxed numbers, arrays.
 *
 * <p>{@code java -XX:+UseG1GC -Xmx1200m Heap.java ORDERS [SEED]}; prints a hash of each step.
 */
public class Heap {
    static final String[] WORDS = ("paid late order parcel returned address checked twice customer called back "
            + "about the missing invoice gift wrapped deliver after five leave at door neighbour").split(" ");

    record Item(String name, int count, double price) {}

    static final class Order {
        final long id;
        final String note;
        final List<Item> items = new ArrayList<>();
        Order next;

        Order(long id, String note) {
            this.id = id;
            this.note = note;
        }
    }

    /** A 64-bit xorshift: the same numbers on every Java. */
    static long state;

    static int below(int bound) {
        state ^= state << 13;
        state ^= state >>> 7;
        state ^= state << 17;
        return (int) ((state >>> 33) % bound);
    }

    static String sentence(int words) {
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < words; i++) {
            text.append(WORDS[below(WORDS.length)]).append(' ');
        }
        return text.toString();
    }

    static long mix(long hash, long value) {
        return (hash ^ value) * 0x9E3779B97F4A7C15L + (hash >>> 29);
    }

    static long digest(Map<Long, Order> orders, int count) {
        long hash = 7;
        for (long id = 0; id < count; id++) {
            Order order = orders.get(id);
            if (order == null) {
                continue;
            }
            hash = mix(hash, order.note.hashCode());
            for (Item item : order.items) {
                hash = mix(hash, item.name().hashCode() + item.count());
                hash = mix(hash, Double.doubleToLongBits(item.price()));
            }
            hash = mix(hash, order.next == null ? -1 : order.next.id);
        }
        return hash;
    }

    public static void main(String[] args) {
        int count = Integer.parseInt(args[0]);
        state = args.length > 1 ? Long.parseLong(args[1]) : 88172645463325252L;
        Map<Long, Order> orders = new HashMap<>();
        Order last = null;
        for (long id = 0; id < count; id++) {
            Order order = new Order(id, sentence(6));
            int items = 1 + below(4);
            for (int i = 0; i < items; i++) {
                order.items.add(new Item(sentence(2), below(100), below(1_000_000) / 100.0));
            }
            order.next = last;
            orders.put(id, order);
            last = below(16) == 0 ? null : order;
        }
        System.out.printf("built   %d %016x%n", orders.size(), digest(orders, count));
        System.gc();
        System.out.printf("kept    %d %016x%n", orders.size(), digest(orders, count));

        // A third dies, the holes are filled with younger objects, and the old ones move.
        for (long id = 0; id < count; id += 3) {
            orders.remove(id);
        }
        for (long id = 0; id < count; id += 6) {
            Order order = new Order(id, sentence(4));
            order.items.add(new Item(sentence(1), below(10), 0.5));
            orders.put(id, order);
        }
        System.gc();
        System.out.printf("renewed %d %016x%n", orders.size(), digest(orders, count));
    }
}
