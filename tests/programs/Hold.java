/** Holds so many MiB until its standard input ends. Says "held" when all is there. */
public class Hold {
    public static void main(String[] arguments) throws java.io.IOException {
        byte[][] held = new byte[Integer.parseInt(arguments[0])][];
        for (int i = 0; i < held.length; i++) {
            held[i] = new byte[1 << 20];
            for (int at = 0; at < held[i].length; at += 64)
                held[i][at] = (byte) (i + at / 64);
        }
        System.out.println("held");
        System.in.read();
        System.exit(held[held.length / 2][64] == (byte) (held.length / 2 + 1) ? 0 : 1);
    }
}
